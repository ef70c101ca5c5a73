// Draws a restore: tokens over time, computed from the head and loaded from the tail.
//
// Thread-safety: a pure function.
#pragma once

#include <string>

#include "client/llama_cpp/svg_plot.h"
#include "client/restorer.h"

namespace larder::llama {

// The legend lists only what occurs in the restore: it leaves out a channel without loads, and
// loads that came too late if there were none.
[[nodiscard]] Plot PictureOf(const Restorer::Restored& restored, const std::string& title);

}  // namespace larder::llama
