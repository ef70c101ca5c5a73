// A plot of this benchmark as a file, with its numbers beside it.
//
// Thread-safety: functions without state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/llama_cpp/svg_plot.h"

namespace larder::bench {

// Writes "FOLDER/NAME.svg" and beside it "NAME.json" with the numbers.
[[nodiscard]] absl::Status Write(const Plot& plot, const std::string& folder,
                                 const std::string& name);
// The values in order, each with its share of all values.
[[nodiscard]] Series Distribution(const std::string& name, std::vector<double> values);

}  // namespace larder::bench
