// An engine's pages and the blocks that are stored from them, as one object of Python.
#pragma once

#include <span>
#include <vector>

#include "client/python/binding.h"
#include "cuda/paged_layout.h"

namespace larder::python {

struct Pages {
  PagedLayout engine;
  PayloadLayout payload;
  friend bool operator==(const Pages&, const Pages&) = default;
};

// Returns the pages of each of `blocks` blocks.  Raises ValueError if not all have equally many.
inline std::vector<std::span<const uint32_t>> PagesOf(std::span<const uint32_t> pages,
                                                      size_t blocks) {
  if (blocks == 0 || pages.size() % blocks != 0 || pages.empty())
    Raise(absl::InvalidArgumentError("each block must have the same number of pages"));
  std::vector<std::span<const uint32_t>> parts;
  const size_t each = pages.size() / blocks;
  for (size_t i = 0; i < blocks; ++i) parts.push_back(pages.subspan(i * each, each));
  return parts;
}

}  // namespace larder::python
