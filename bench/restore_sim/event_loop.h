// Drives a Scheduler with an engine and channels that are simulated: discrete events, with a clock
// of their own.
//
// Each stage computes one step at a time; each channel has up to two loads and serves them one
// after the other.  The machine's costs are the true ones; the scheduler has a cost model of its
// own, right or wrong.
// Ownership: values.  Thread-safety: none; several loops may run at once.
// Limits: kEventsMax events; a run that needs more, or that has work left when no event is due,
// ends the process.
#pragma once

#include <functional>
#include <vector>

#include "bench/restore_sim/speed.h"
#include "client/restore/scheduler.h"

namespace larder::bench {

enum class Fate : uint8_t { kLands, kFails, kGone, kStalls };

// The true machine.
struct Machine {
  uint16_t layers = 1;
  ComputeCost compute = {};
  std::vector<double> rates = {};  // B/s, of ChannelId 1, 2, ...
  uint16_t stages = 1;
  Speed compute_speed = {};
  std::vector<Speed> channel_speeds = {};  // empty: all constant
  std::function<Fate(const Load&)> fate = nullptr;
  std::function<void(const Load&)> placed = nullptr;  // called for each load whose bytes were used

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
  std::vector<double> compute_busy_s = {};  // per stage, until the last restore ended
  std::vector<double> channel_busy_s = {};
  // How long, at most, a load that never ends was waited for after its deadline: after the deadline
  // that it had when its channel began it, and after the one with which it was given to the
  // channel.
  double stalled_s = 0, stalled_since_given_s = 0;
  uint64_t decisions = 0;
};

[[nodiscard]] RunResult Run(const Machine& machine, const std::vector<Arrival>& arrivals,
                            Scheduler& scheduler);

}  // namespace larder::bench
