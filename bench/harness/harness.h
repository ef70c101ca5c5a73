// What all benchmarks share: options, interleaved rounds, medians, and one line per figure with the
// speed of the machine's memory at that time.
//
// A ratio is the median over rounds of (ours / floor in the same round): a machine that slows down
// for a while slows both.  Value and floor are medians of their own.  If a floor has several
// candidates, the one with the best median is used.  The memory's speed is measured before every
// round and after the last; for a figure without such rounds, when it is reported.
// Ownership: values.  Thread-safety: none.
// Limits: on the command line, a name selects the figures that begin with it ("host_get" runs all
// of them).  Every figure that a program prints is in its list.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/harness/memory_speed.h"

namespace larder::bench {

struct Figure {
  std::string name;
  double value = 0;
  std::string unit;  // "B/s", "s", "B", "fraction"
  std::optional<double> floor, ratio;
  int rounds = 1;
};

class Harness {
 public:
  // `figures`: all that this program prints, for --list and for checking names.
  Harness(int argc, char** argv, std::vector<std::string> figures);

  // The exit code, if the program should end now (--list, --help, a bad option, or none of its
  // figures is wanted).
  [[nodiscard]] std::optional<int> done() const { return done_; }
  [[nodiscard]] bool quick() const { return quick_; }
  [[nodiscard]] int rounds() const { return quick_ ? 5 : 9; }
  // Whether the figure, or its 99th percentile "FIGURE_p99", is wanted.
  [[nodiscard]] bool Wants(std::string_view figure) const;

  // The memory's speed in the rounds that are about to be reported.  Measuring it empties the
  // caches, so the calls right after it are slower.
  [[nodiscard]] MemorySpeed& memory() { return memory_; }

  // Prints a row, and appends a line to the JSON file.
  void Report(const Figure& figure);
  // Prints a line of explanation below the row.
  void Note(std::string_view text) const;
  // Prints the error; returns the exit code.
  int Fail(const absl::Status& status) const;

 private:
  void ReadOptions(std::span<char*> args);

  std::vector<std::string> figures_, names_;
  MemorySpeed memory_;
  std::string json_;
  bool quick_ = false;
  std::optional<int> done_;
};

// The figures, each followed by its "_p99".
[[nodiscard]] std::vector<std::string> WithP99(const std::vector<std::string>& figures);

[[nodiscard]] double Median(std::vector<double> values);
// The value below which a share `q` of the values lies.
[[nodiscard]] double Quantile(std::vector<double> values, double q);
[[nodiscard]] double SecondsNow();  // monotonic
// "17.3 GB/s", "54.1 us", "74.2 B".
[[nodiscard]] std::string Pretty(double value, std::string_view unit);

// result[contestant][round]: in every round each contestant runs once, in order, after one
// unmeasured round.  Stops at the first error.
using Contestant = std::function<absl::StatusOr<double>()>;
[[nodiscard]] absl::StatusOr<std::vector<std::vector<double>>> Interleave(
    Harness& harness, int rounds, std::span<const Contestant> contestants);

[[nodiscard]] double MedianRatio(std::span<const double> ours, std::span<const double> floor);
// The index of the candidate whose rates have the greatest median.
[[nodiscard]] size_t Fastest(std::span<const std::vector<double>> rates);

// Latencies of two calls that take turns: `calls` of each in every round, changing sides every few
// calls.  A few calls before them are not counted.
struct Latencies {
  std::vector<double> p50, p99;  // per round
};
struct Duel {
  Latencies ours, floor;
};
[[nodiscard]] absl::StatusOr<Duel> RunDuel(Harness& harness, int calls, const Contestant& ours,
                                           const Contestant& floor);
// Reports NAME (p50) and NAME_p99.
void ReportDuel(Harness& harness, const std::string& name, const Duel& duel);

}  // namespace larder::bench
