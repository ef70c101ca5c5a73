// Waits for an answer of the daemon, and ends early if the call's owner requests a stop on another
// thread.  PendingCalls has no notification for a stop, so the stop token is polled.
//
// Thread-safety: That of the awaited call.
#pragma once

#include <algorithm>
#include <chrono>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/pending_calls.h"
#include "storage/clock.h"

namespace larder {

// Calls wait(until), which returns a StatusOr, until it returns anything except DeadlineExceeded,
// and returns that result.  Returns DeadlineExceeded once the deadline has passed, or within about
// 20 ms after `stop` was requested.
template <class Wait>
[[nodiscard]] auto AwaitUnlessStopped(const std::stop_token& stop, TimePoint deadline,
                                      const Wait& wait) {
  constexpr std::chrono::milliseconds kCheckEvery{20};  // between two checks
  for (;;) {
    const TimePoint next = SteadyNow() + kCheckEvery;
    const TimePoint until = stop.stop_possible() ? std::min(deadline, next) : deadline;
    auto answer = wait(until);
    if (!absl::IsDeadlineExceeded(answer.status())) return answer;
    if (until == deadline || stop.stop_requested()) return answer;
  }
}

// Waits for the answer to `call`, of kind A.
template <class A>
[[nodiscard]] absl::StatusOr<A> AwaitAnswer(OpenCall& call, const std::stop_token& stop,
                                            TimePoint deadline) {
  return AwaitUnlessStopped(stop, deadline,
                            [&call](TimePoint until) { return call.Wait<A>(until); });
}

}  // namespace larder
