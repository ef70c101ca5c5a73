// Waiting awake, for what another thread is about to bring: to wake a thread that sleeps takes
// longer than most of what is waited for here.
//
// For short whiles after work was done, before the real wait; never instead of it.  Where the cores
// are fewer than the threads that have work, whoever looks takes a core from one that works, maybe
// from the very one that it waits for: SpinWhileIdle ends as soon as that shows.
// Thread-safety: SpinUntil and SpinWhileIdle as `done`; IdleSpin: none.
#pragma once

#include <chrono>
#include <thread>

#include "storage/clock.h"

namespace larder {

// How long to look: until a time, and no longer than nobody else wants the core.  That shows by a
// look which comes late, as the thread was off its core in between: it yielded and was not given
// the core back, or was taken off it.  Then it is over for good.
class IdleSpin {
 public:
  // Beyond it a look is late.  One that finds nothing takes a microsecond or two, with the yield
  // after it; a thread that is let in between keeps the core for longer than this, as a rule.
  static constexpr std::chrono::microseconds kLate{20};

  explicit IdleSpin(TimePoint until) : until_(until) {}

  // Asked before each look that may be vain, or after it, with the time at which it is asked.
  // False: sleep now, by a wait that looks once more itself.
  [[nodiscard]] bool On(TimePoint now) {
    if (last_ + kLate < now) until_ = TimePoint::min();
    last_ = now;
    return now < until_;
  }

 private:
  TimePoint until_;
  TimePoint last_ = TimePoint::max() - kLate;  // when it was asked before: never, so not late
};

// Asks done() again and again, yielding, since whoever brings it may wait for this very core.
// False: it was not by then, or not even asked when `until` is over.
template <class Done>
[[nodiscard]] bool SpinUntil(TimePoint until, Done done) {
  while (std::chrono::steady_clock::now() < until) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

// The same, and false as well when somebody else wants the core (IdleSpin).
// REQUIRES: the caller's real wait asks again; it may have become so while the core was another's.
template <class Done>
[[nodiscard]] bool SpinWhileIdle(TimePoint until, Done done) {
  IdleSpin look(until);
  while (look.On(std::chrono::steady_clock::now())) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace larder
