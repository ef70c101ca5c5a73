// Decides in which order the engine and each channel serve the restores of several requests.
//
// A policy sees a few numbers of each request and returns a key.  The request with the lowest key
// is served first, and those with equal keys in order of arrival.  The scheduler decides what is
// done for a request.
// Thread-safety: none needed, policies have no state.
#pragma once

#include <cstdint>
#include <memory>

namespace larder {

struct RequestView {
  double arrived_s = 0;
  double waited_s = 0;
  double remaining_s = 0;       // if it had the engine and its channels to itself
  double remaining_load_s = 0;  // on the channel to serve, if weighs_loads()
  uint64_t computed_turn = 0;   // the turn in which it was last given a step of the restore
  uint64_t loaded_turn = 0;     // the turn in which it was last given a load
};

class Policy {
 public:
  virtual ~Policy() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual bool weighs_loads() const { return false; }
  [[nodiscard]] virtual double ComputeKey(const RequestView& request) const = 0;
  [[nodiscard]] virtual double LoadKey(const RequestView& request) const = 0;
};

// The default: the engine and the channels serve first the request with the least time remaining.
// Waiting counts as if less time remained, relative to the remaining time: a request that has
// waited 1 / age_weight times its remaining time counts as if half of that time remained.  (If each
// second of waiting counted as a second less, a long request that has waited for long would hold up
// the many short ones behind it.)  So that no request starves, those that have waited at least 100
// times their remaining time come before all others, the longest wait first.
[[nodiscard]] std::unique_ptr<Policy> FinishFirst(double age_weight = 0.3);
// CacheFlow's Algorithm 1: requests take turns at computing, one step each, and each channel serves
// the request with the most remaining work on it.
[[nodiscard]] std::unique_ptr<Policy> AlgorithmOne();
// The engine and the channels serve first the request that arrived first.
[[nodiscard]] std::unique_ptr<Policy> OldestFirst();
// The engine serves the restore whose last step is longest ago, and a channel serves the restore
// whose last load, on any channel, is longest ago.
[[nodiscard]] std::unique_ptr<Policy> TakeTurns();

}  // namespace larder
