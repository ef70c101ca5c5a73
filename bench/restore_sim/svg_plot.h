// A small plot as SVG: lines or points over two axes, linear or logarithmic.
//
// Ownership: a value.  Thread-safety: none.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace larder::bench {

struct Series {
  std::string name = {};
  std::vector<double> x = {}, y = {};
  bool points = false;  // else a line
};

struct Plot {
  std::string title = {}, x_label = {}, y_label = {};
  bool x_log = false, y_log = false;
  std::vector<Series> series = {};
};

[[nodiscard]] std::string Draw(const Plot& plot);
// "FOLDER/NAME.svg", and beside it "NAME.json" with the numbers.
[[nodiscard]] absl::Status Write(const Plot& plot, const std::string& folder,
                                 const std::string& name);
// Values in order, each with its share of all.
[[nodiscard]] Series Distribution(const std::string& name, std::vector<double> values);

}  // namespace larder::bench
