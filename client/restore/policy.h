// Which request comes first, on the engine and on each channel.
//
// A policy sees requests as a few numbers and answers a key: the lowest is served first, equal ones
// in order of arrival. What is done with the request that comes first is the scheduler's.
// Thread-safety: none needed, policies have no state.
#pragma once

#include <cstdint>
#include <memory>

namespace larder {

struct RequestView {
  double arrived_s = 0;
  double waited_s = 0;
  double remaining_s = 0;       // with the engine and its channels to itself
  double remaining_load_s = 0;  // on the channel that asks; for policies that weigh it
  uint64_t computed_turn = 0;   // when it was last given a step, counted in steps
  uint64_t loaded_turn = 0;     // when it was last given a load
};

class Policy {
 public:
  virtual ~Policy() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual bool weighs_loads() const { return false; }
  [[nodiscard]] virtual double ComputeKey(const RequestView& request) const = 0;
  [[nodiscard]] virtual double LoadKey(const RequestView& request) const = 0;
};

// The default: both resources to the request that can finish first.  Waiting makes it shorter, in
// its own measure: who has waited 1 / age_weight times what he has left counts as half of that, and
// so on.  (Seconds for seconds, a long one that has waited for long would hold up the many short
// ones behind it.)  So that none starves, who has waited 100 times what he has left comes before
// all who have not, the longest first.
[[nodiscard]] std::unique_ptr<Policy> FinishFirst(double age_weight = 0.3);
// CacheFlow's Algorithm 1: computing goes round by chunk, each channel to its most remaining work.
[[nodiscard]] std::unique_ptr<Policy> AlgorithmOne();
// Both resources to the request that came first.
[[nodiscard]] std::unique_ptr<Policy> OldestFirst();
// Both go round.
[[nodiscard]] std::unique_ptr<Policy> TakeTurns();

}  // namespace larder
