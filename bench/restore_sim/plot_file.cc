// See plot_file.h.
#include "bench/restore_sim/plot_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace larder::bench {

absl::Status Write(const Plot& plot, const std::string& folder, const std::string& name) {
  nlohmann::json numbers = {{"title", plot.title}, {"x", plot.x_label}, {"y", plot.y_label}};
  for (const Series& series : plot.series) {
    numbers["series"].push_back({{"name", series.name}, {"x", series.x}, {"y", series.y}});
  }
  std::ofstream data(absl::StrCat(folder, "/", name, ".json"));
  data << numbers.dump(1) << '\n';
  if (!data.flush()) {
    return absl::UnavailableError(
        absl::StrCat("cannot write ", folder, "/", name, ".json; is the folder there?"));
  }
  return WritePicture(plot, absl::StrCat(folder, "/", name, ".svg"));
}

Series Distribution(const std::string& name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Series series{name};
  const size_t stride = std::max<size_t>(values.size() / 400, 1);
  for (size_t i = 0; i < values.size(); i += stride) {
    series.x.push_back(values[i]);
    series.y.push_back(static_cast<double>(i + 1) / static_cast<double>(values.size()));
  }
  return series;
}

}  // namespace larder::bench
