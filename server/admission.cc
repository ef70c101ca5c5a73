#include "server/admission.h"

namespace larder {

Admission::Admission(const Limits& limits) {
  // A call takes well under a millisecond to tens of them; a session lasts, so that knocking again
  // soon is only load.
  using std::chrono::milliseconds;
  const uint64_t max[] = {limits.calls_max, limits.sessions_max, limits.bytes_max.value()};
  const Duration pause[] = {milliseconds(20), milliseconds(500), milliseconds(20)};
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].max = max[i];
    states_[i].pause = pause[i];
  }
}

Admission::Answer Admission::Enter(Gate gate, uint64_t amount) {
  State& state = states_[static_cast<size_t>(gate)];
  uint64_t inside = state.inside.load(std::memory_order_relaxed);
  // By comparison, not by add and undo: two that overshoot together would both be refused, and the
  // limit would be passed for a moment.
  while (amount <= state.max && inside <= state.max - amount) {
    if (state.inside.compare_exchange_weak(inside, inside + amount, std::memory_order_relaxed)) {
      return {.ticket = Ticket(&state.inside, amount), .retry_after = {}};
    }
  }
  const uint64_t nth = state.refused.fetch_add(1, std::memory_order_relaxed);
  if (amount > state.max) return {};
  // Spread over 1x to 2x, so that those refused together do not come back together.
  constexpr uint64_t kSteps = 16;
  return {.ticket = {}, .retry_after = state.pause + state.pause * (nth % kSteps) / kSteps};
}

}  // namespace larder
