// See row.h.
#include "bench/restore_sim/row.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"

namespace larder::bench {

void Reporter::Bar(const std::string& figure, double value, Sense sense, double bar,
                   const std::string& unit) {
  Show(figure, value, unit);
  const bool held = sense == Sense::kAtMost ? value <= bar : value >= bar;
  missed_ += !held;
  harness_.Note(absl::StrFormat("bar: %s %.4g: %s",
                                sense == Sense::kAtMost ? "at most" : "at least", bar,
                                held ? "held" : "MISSED"));
}

void Reporter::Show(const std::string& figure, double value, const std::string& unit) {
  harness_.Report({figure, value, unit, std::nullopt, std::nullopt});
}

bool Reporter::Wants(const std::vector<std::string>& figures) const {
  return std::any_of(figures.begin(), figures.end(),
                     [&](const auto& figure) { return harness_.Wants(figure); });
}

}  // namespace larder::bench
