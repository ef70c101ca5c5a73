// What every benchmark shares: options, interleaved rounds, medians, and one line per figure,
// beside it the speed of the machine's memory at that time.
//
// A ratio is the median over rounds of (ours / floor in the same round): a machine that slows down
// for a while slows both.  Value and floor are the medians of their own.  Where a floor has several
// candidates, it is the one with the best median.  The memory's speed is measured before each round
// and after the last; for a figure without rounds of these kinds, when it is reported.
// Ownership: values.  Thread-safety: none.
// Limits: a figure's name is matched exactly or, on the command line, as a prefix ("host_get" runs
// all of them); one that is printed is in the list of its program.
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

  // The program should end now with this code (--list, --help, a bad option, or no figure of ours
  // is wanted).
  [[nodiscard]] std::optional<int> done() const { return done_; }
  [[nodiscard]] bool quick() const { return quick_; }
  [[nodiscard]] int rounds() const { return quick_ ? 5 : 9; }
  // It, or its 99th percentile, "FIGURE_p99".
  [[nodiscard]] bool Wants(std::string_view figure) const;

  // How fast the memory is: rounds that are about to be reported.  Others' calls are slower right
  // after it, as it takes the caches.
  [[nodiscard]] MemorySpeed& memory() { return memory_; }

  // Prints a row, and a line to the JSON file.
  void Report(const Figure& figure);
  // A line of explanation below the row.
  void Note(std::string_view text) const;
  // Prints the error; answers the exit code.
  int Fail(const absl::Status& status) const;

 private:
  void ReadOptions(std::span<char*> args);

  std::vector<std::string> figures_, names_;
  MemorySpeed memory_;
  std::string json_;
  bool quick_ = false;
  std::optional<int> done_;
};

// Each with its "_p99".
[[nodiscard]] std::vector<std::string> WithP99(const std::vector<std::string>& figures);

[[nodiscard]] double Median(std::vector<double> values);
// The value below which a share `q` of them lies.
[[nodiscard]] double Quantile(std::vector<double> values, double q);
[[nodiscard]] double SecondsNow();  // monotonic
// "17.3 GB/s", "54.1 us", "74.2 B".
[[nodiscard]] std::string Pretty(double value, std::string_view unit);

// result[contestant][round]: in each round every contestant runs once, in order, after one
// unmeasured round.  The first error ends it.
using Contestant = std::function<absl::StatusOr<double>()>;
[[nodiscard]] absl::StatusOr<std::vector<std::vector<double>>> Interleave(
    Harness& harness, int rounds, std::span<const Contestant> contestants);

[[nodiscard]] double MedianRatio(std::span<const double> ours, std::span<const double> floor);
// Of rates: the candidate with the greatest median.
[[nodiscard]] size_t Fastest(std::span<const std::vector<double>> rates);

// Latencies of two calls, taken in turn: `calls` of each in every round, changing sides every few
// calls.  A few before them do not count.
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
