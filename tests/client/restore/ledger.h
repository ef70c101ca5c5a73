// A driver that checks the promises of a scheduler.  It keeps its own record of each layer of each
// block, lets steps and loads end in any order, fail or stall, and after each event checks what
// scheduler.h promises.
//
// Ownership: a value; owns the scheduler.
// Thread-safety: none.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "client/restore/scheduler.h"

namespace larder::testing {

struct LedgerOptions {
  SchedulerOptions scheduler = {};
  double fails = 0, gone = 0, stalls = 0;  // shares of the loads
  double refuses = 0;                      // share of the steps that the engine does not compute
  uint32_t budget = 1 << 30;               // maximum tokens of a step
  size_t in_flight = 3;                    // loads of a channel
};

class Ledger {
 public:
  Ledger(uint32_t seed, LedgerOptions options, CostModel costs, std::unique_ptr<Policy> policy,
         uint16_t stages, uint16_t channels);

  void Add(const RequestSpec& spec);
  // Runs until all requests have their outcome.
  void RunToEnd();
  // Causes one event: a step ends, a load ends, or time passes.  Returns false if no event is left.
  bool Step();
  void Cancel(RequestId id);

  Scheduler& scheduler() { return scheduler_; }
  [[nodiscard]] const std::vector<Outcome>& outcomes() const { return outcomes_; }
  [[nodiscard]] uint64_t hedges() const { return hedges_; }
  [[nodiscard]] uint64_t late() const { return late_; }

 private:
  // One layer of one block.
  struct Cell {
    bool computed = false, computing = false;
    std::vector<bool> landed, loading;  // per rank
    [[nodiscard]] bool there() const;
    [[nodiscard]] bool claimed() const;  // by loads, or loaded
  };
  struct Book {
    RequestSpec spec;
    std::vector<std::vector<std::vector<Cell>>> cells;  // [stage][block][layer]
    std::vector<std::vector<bool>> boundary;            // [stage][block]
    std::vector<std::vector<uint16_t>> activations;     // [stage][chunk]: computed up to this layer
    std::vector<std::vector<uint32_t>> through;  // [stage][chunk]: tokens of the layers above it
  };

  void Ask();
  void Check(const ComputeStep& step);
  void CheckCut(const Book& book, const ComputeStep& step);
  void Check(const Load& load);
  void End(const ComputeStep& step);
  void End(const Load& load);
  void Collect();
  void CheckOutcome(const Outcome& outcome);
  [[nodiscard]] uint32_t ChunkTokens(const Book& book) const;
  [[nodiscard]] double Real(double low, double high);
  Cell& At(Book& book, uint16_t stage, uint32_t block, uint16_t layer);

  std::mt19937 random_;
  LedgerOptions options_;
  Scheduler scheduler_;
  uint16_t stages_, channels_;
  double now_s_ = 0;
  std::map<uint64_t, Book> books_;
  std::vector<ComputeStep> steps_;
  std::vector<Load> loads_;
  std::vector<Outcome> outcomes_;
  uint64_t hedges_ = 0, late_ = 0;
};

}  // namespace larder::testing
