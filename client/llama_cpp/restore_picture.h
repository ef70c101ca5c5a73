// A restore as a picture: tokens over time, computed from the head, loaded from the tail.
//
// Thread-safety: a pure function.
#pragma once

#include <string>

#include "client/llama_cpp/svg_plot.h"
#include "client/restorer.h"

namespace larder::llama {

// A channel without loads, and loads that came too late, have no line in the legend where there are
// none.
[[nodiscard]] Plot PictureOf(const Restorer::Restored& restored, const std::string& title);

}  // namespace larder::llama
