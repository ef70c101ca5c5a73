// An engine's pages and the blocks that are stored from them, as one object of Python.
#pragma once

#include "cuda/paged_layout.h"

namespace larder::python {

struct Pages {
  PagedLayout engine;
  PayloadLayout payload;
};

}  // namespace larder::python
