// Anonymous memory that reads as zeros and costs nothing until it is touched, for the index's
// tables and entries.
//
// The TLB limits random reads of hundreds of megabytes: with 2 MiB pages a lookup among 10 M blocks
// walks far fewer page tables.  But the first touch of a huge page allocates all of it, so the
// caller decides when to ask for them.
// Ownership: owns its mapping; movable.
// Thread-safety: none of its own.
// Limits: aborts the process if there is no memory.
#pragma once

#include <cstddef>

namespace larder {

class ZeroedMemory {
 public:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  ZeroedMemory() = default;
  // `huge` asks for 2 MiB pages.  It has no effect below 2 MiB, or if the host refuses.
  // REQUIRES: bytes > 0.
  ZeroedMemory(size_t bytes, bool huge);
  ~ZeroedMemory();
  ZeroedMemory(ZeroedMemory&& other) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept;

  // The memory as elements of a type of which all zeros is a value.
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
