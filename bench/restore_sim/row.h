// What all rows of the benchmark share: figures are reported beside their bars.
//
// Ownership: the Reporter borrows the harness.  Thread-safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness/harness.h"

namespace larder::bench {

enum class Sense { kAtMost, kAtLeast };

class Reporter {
 public:
  // Far from all seeds on which the scheduler was tuned.
  static constexpr uint64_t kSeedBase = 1'000'000'000;

  explicit Reporter(Harness& harness, std::string plots = {}, uint64_t seed_base = kSeedBase)
      : harness_(harness), plots_(std::move(plots)), seed_base_(seed_base) {}

  // Reports a line of the table and of the JSON file, and below it whether the bar is met.
  void Bar(const std::string& figure, double value, Sense sense, double bar,
           const std::string& unit = "fraction");
  // Reports the same without a bar.
  void Show(const std::string& figure, double value, const std::string& unit = "fraction");
  void Note(const std::string& text) { harness_.Note(text); }
  [[nodiscard]] bool Wants(const std::vector<std::string>& figures) const;
  [[nodiscard]] bool quick() const { return harness_.quick(); }
  // Where pictures are written; empty if none are wanted.
  [[nodiscard]] const std::string& plots() const { return plots_; }
  // The first of the seeds on which nothing was tuned.
  [[nodiscard]] uint64_t seed_base() const { return seed_base_; }
  [[nodiscard]] int missed() const { return missed_; }

 private:
  Harness& harness_;
  std::string plots_;
  uint64_t seed_base_;
  int missed_ = 0;
};

struct Row {
  std::string number;  // in the table of bench/restore_sim/README.md
  std::vector<std::string> figures;
  void (*run)(Reporter&);
};

// Each is defined in the file that is named after it.
[[nodiscard]] std::vector<Row> PaperRows();
[[nodiscard]] std::vector<Row> RegimeRows();
[[nodiscard]] std::vector<Row> BatchRows();
[[nodiscard]] std::vector<Row> ParallelRows();
[[nodiscard]] std::vector<Row> DecisionRows();
[[nodiscard]] std::vector<Row> AdaptiveRows();

}  // namespace larder::bench
