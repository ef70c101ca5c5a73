// Draws a restore: tokens over time, computed from the head and loaded from the tail.
//
// Thread-safety: a pure function.
#pragma once

#include <string>

#include "client/llama_cpp/svg_plot.h"
#include "client/restorer.h"

namespace larder::llama {

// The legend lists, of the following, only what occurs in the restore: tokens that were computed,
// loaded from the pool, loaded from the disk, and loads that were not used.
[[nodiscard]] Plot PictureOf(const Restorer::Restored& restored, const std::string& title);

}  // namespace larder::llama
