// Waits for an answer of the daemon, which a stop ends early: the call's owner asked for it on
// another thread, and nothing of PendingCalls hears a stop, so it is looked for now and then.
//
// Thread-safety: as what is waited on.
#pragma once

#include <algorithm>
#include <chrono>
#include <stop_token>

#include "absl/status/status.h"
#include "storage/clock.h"

namespace larder {

// wait(until), a StatusOr, until it answers something else than DeadlineExceeded, the deadline
// passes, or `stop` was requested some milliseconds ago.
template <class Wait>
[[nodiscard]] auto AwaitUnlessStopped(const std::stop_token& stop, TimePoint deadline,
                                      const Wait& wait) {
  constexpr std::chrono::milliseconds kCheckEvery{20};  // between two looks
  for (;;) {
    const TimePoint next = std::chrono::steady_clock::now() + kCheckEvery;
    const TimePoint until = stop.stop_possible() ? std::min(deadline, next) : deadline;
    auto answer = wait(until);
    if (!absl::IsDeadlineExceeded(answer.status())) return answer;
    if (until == deadline || stop.stop_requested()) return answer;
  }
}

}  // namespace larder
