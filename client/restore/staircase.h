// What plans are measured against: the exact optimum over all staircases (depths that never
// increase from chunk to chunk, plan.h), and a lower bound on the time of any schedule.
//
// Both are for tests and benchmarks; a restore never uses them.
// Thread-safety: functions without state.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "client/restore/plan.h"

namespace larder {

struct Optimum {
  double seconds = 0;
  std::vector<uint16_t> depths = {};
};

// Returns the fastest of all depths that do not increase, whether the engine splits layers or not,
// by dynamic programming over (chunk, depth), which keeps the sums that no other state beats.
// Returns nullopt if it would keep more than about `states_max` states.  The time is
// CostOf(...).seconds(), without the suffix.
[[nodiscard]] std::optional<Optimum> BestStaircase(const PlanInput& input,
                                                   size_t states_max = 2'000'000);

// Returns a time that no order of computing and loading beats, whether it is a staircase or not.
//
// Proof: let T be the time of any schedule.  Each channel loads for at most T, and what is not
// loaded is computed, in at most T.  A cell (a layer of a chunk) that is not computed is loaded
// from all channels that have a part in it, so what a channel spares the engine is at most the
// share of the cell that we credit it with; the best that a channel can do with T is to load,
// fractions allowed, the cells that spare most per second.  If even that leaves more than T to
// compute, T is too small.  The bound is the least T for which it does not.
[[nodiscard]] double LowerBound(const PlanInput& input);

// For a machine whose speeds change: how much work the engine and each channel do in the first
// `seconds` of a restore, in seconds at the speeds that the costs of the input are meant for.
struct WorkDone {
  std::function<double(double seconds)> compute;
  std::function<double(ChannelId channel, double seconds)> load;
};
// Returns a time that no schedule beats if speeds change as `done` says, even if it knows all
// speeds in advance.  REQUIRES: neither function of `done` decreases, and done.compute grows
// without limit.
[[nodiscard]] double LowerBound(const PlanInput& input, const WorkDone& done);

}  // namespace larder
