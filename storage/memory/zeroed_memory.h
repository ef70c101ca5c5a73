// Anonymous memory that reads as zeros and takes no physical memory until it is touched, for the
// index's tables and entries.
//
// Huge pages make random reads in large tables faster, but the first touch of a huge page allocates
// all of it, so the caller decides for which memory to ask for huge pages.
// Ownership: owns its mapping; movable.
// Thread-safety: none of its own.
// Limits: aborts the process if mmap fails.
#pragma once

#include <cstddef>

namespace larder {

class ZeroedMemory {
 public:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  ZeroedMemory() = default;
  // Maps `bytes` bytes, rounded up to 4 KiB.  `huge` asks for 2 MiB pages; this has no effect below
  // 2 MiB, or if the host refuses.  REQUIRES: bytes > 0.
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
