// Anonymous memory that reads as zeros and costs nothing until it is touched: the index's tables
// and entries.
//
// Random reads of hundreds of megabytes are bound by the TLB; with 2 MiB pages a look-up among 10 M
// blocks walks far fewer page tables.  But a huge page is paid whole at its first touch, so the
// caller says when.
// Ownership: its own mapping; movable.
// Thread-safety: none of its own.
// Limits: out of memory ends the process, as operator new would.
#pragma once

#include <cstddef>

namespace larder {

class ZeroedMemory {
 public:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;

  ZeroedMemory() = default;
  // REQUIRES: bytes > 0.  `huge`: ask for 2 MiB pages; without effect below 2 MiB, and where the
  // host refuses.
  ZeroedMemory(size_t bytes, bool huge);
  ~ZeroedMemory();
  ZeroedMemory(ZeroedMemory&& other) noexcept;
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept;

  // Elements of a type to which all zeros is a value.
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
