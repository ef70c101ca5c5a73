// Waiting awake, for what another thread is about to bring: to wake a thread that sleeps takes
// longer than most of what is waited for here.
//
// For short whiles after work was done, before the real wait; never instead of it.
// Thread-safety: as `done`.
#pragma once

#include <thread>

#include "storage/clock.h"

namespace larder {

// Asks done() again and again, yielding, since whoever brings it may wait for this very core.
// False: it was not by then, or not even asked when `until` is over.
template <class Done>
[[nodiscard]] bool LookUntil(TimePoint until, Done done) {
  while (std::chrono::steady_clock::now() < until) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace larder
