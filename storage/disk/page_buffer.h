// Zeroed, page-aligned memory of whole pages, for reads and writes past the page cache.
//
// Ownership: owns the memory; movable.  Thread-safety: none of its own.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "storage/check.h"
#include "storage/types.h"

namespace larder {

class PageBuffer {
 public:
  explicit PageBuffer(uint32_t pages) : size_(pages * kPageBytes) {
    if (size_ == 0) return;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size_)));
    LARDER_CHECK(memory_ != nullptr);
    std::memset(memory_.get(), 0, size_);
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace larder
