// Anonymous memory that reads as zeros, for the index's tables and entries.
//
// Small pages take no physical memory until they are touched.  Huge pages make random reads in
// large tables faster, but they take all their memory at once, so the caller decides which it gets.
// Ownership: owns its mapping; movable.
// Thread-safety: none of its own.
// Limits: aborts the process if mmap fails.
#pragma once

#include <cstddef>

namespace larder {

class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  // Maps `bytes` bytes, rounded up to 4 KiB.  `huge` asks for huge pages; this has no effect below
  // kHugePageBytes, or if the host refuses.  REQUIRES: bytes > 0.
  ZeroedMemory(size_t bytes, bool huge);
  ~ZeroedMemory();
  ZeroedMemory(ZeroedMemory&& other) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept;

  // Returns the memory as an array of T.  REQUIRES: bytes that are all zero are a valid T.
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(memory_);
  }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace larder
