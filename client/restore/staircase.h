// The yardsticks of a plan: the exact optimum over all staircases, and a bound that no schedule
// passes.
//
// Both are for tests and benchmarks; a restore never waits for them.
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

// The fastest of all depth profiles that do not increase, by dynamic programming over (chunk,
// depth) with the sums that nothing else beats; nullopt when more than `states_max` of them would
// have to be kept.  Its time is CostOf(...).seconds(): the suffix is not its business.
[[nodiscard]] std::optional<Optimum> BestStaircase(const PlanInput& input,
                                                   size_t states_max = 2'000'000);

// No order of computing and loading, staircase or not, restores faster.
//
// Proof: let T be the time of any schedule.  Each channel loads for at most T, and what is not
// loaded is computed, in at most T.  A cell (a layer of a chunk) that is not computed is loaded
// from all channels that have a part in it, so what a channel spares the engine is at most the
// share of the cell that we credit it with; the best that a channel can do with T is to load,
// fractions allowed, the cells that spare most per second.  Where even that leaves more than T to
// compute, T is too small.  The bound is the least T where it does not.
[[nodiscard]] double LowerBound(const PlanInput& input);

// The same where speeds change: what the engine and each channel get done in `seconds`, in seconds
// at the speed that the input's costs are meant for.  Nobody who knows all speeds beforehand is
// faster.
struct WorkDone {
  std::function<double(double seconds)> compute;
  std::function<double(ChannelId channel, double seconds)> load;
};
[[nodiscard]] double LowerBound(const PlanInput& input, const WorkDone& done);

}  // namespace larder
