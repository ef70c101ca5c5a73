// Drives a Scheduler with an engine and channels that exist in numbers only: discrete events, no
// clock but its own.
//
// Each stage computes one step at a time; each channel serves its loads one after the other, two of
// them given to it. What things really cost is the machine's; the scheduler has a cost model of its
// own, right or wrong.
// Ownership: values.  Thread-safety: none; any number may run at once.
// Limits: kEventsMax events; a run that needs more, or that stands still with work left, ends the
// process.
#pragma once

#include <functional>
#include <vector>

#include "bench/restore_sim/speed.h"
#include "client/restore/scheduler.h"

namespace larder::bench {

enum class Fate : uint8_t { kLands, kFails, kGone, kStalls };

// What is true.
struct Machine {
  uint16_t layers = 1;
  ComputeCost compute = {};
  std::vector<double> rates = {};  // B/s, of ChannelId 1, 2, ...
  uint16_t stages = 1;
  Speed compute_speed = {};
  std::vector<Speed> channel_speeds = {};  // none: all constant
  std::function<Fate(const Load&)> fate = nullptr;
  std::function<void(const Load&)> placed = nullptr;  // told of each whose bytes were of use

  [[nodiscard]] double ComputeSeconds(TokenRange tokens, uint16_t step_layers) const {
    return compute.Seconds(tokens) * step_layers / layers;
  }
};

struct Arrival {
  double at_s = 0;
  RequestSpec spec = {};
};

struct RunResult {
  std::vector<Outcome> outcomes = {};  // in the order in which they ended
  double end_s = 0;
  std::vector<double> compute_busy_s = {};  // per stage, until the last restore was through
  std::vector<double> channel_busy_s = {};
  // The longest that a load that never ends was still waited for after its deadline: the one that
  // it had when its channel got to it, and the one that it was given with.
  double stalled_s = 0, stalled_since_given_s = 0;
  uint64_t decisions = 0;
};

[[nodiscard]] RunResult Run(const Machine& machine, const std::vector<Arrival>& arrivals,
                            Scheduler& scheduler);

}  // namespace larder::bench
