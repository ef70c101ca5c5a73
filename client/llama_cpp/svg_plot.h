// Draws a small plot as SVG: lines, points or boxes over two axes, linear or logarithmic.
//
// Ownership: a value.  Thread-safety: none.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace larder {

struct Box {
  double x_begin = 0, x_end = 0, y_begin = 0, y_end = 0;
};

struct Series {
  std::string name = {};
  std::vector<double> x = {}, y = {};
  bool points = false;          // draw x and y as points; otherwise as a line
  std::vector<Box> boxes = {};  // filled
  bool hollow = false;          // draw only the outlines of the boxes
};

struct Plot {
  std::string title = {}, x_label = {}, y_label = {};
  bool x_log = false, y_log = false;
  std::vector<Series> series = {};
};

[[nodiscard]] std::string Draw(const Plot& plot);
[[nodiscard]] absl::Status WritePicture(const Plot& plot, const std::string& path);

}  // namespace larder
