// Spins for what another thread is about to provide: waking a thread that sleeps takes longer than
// most of the waits that callers use this for.
//
// A caller spins for a short time after it had work, and before its real wait, never instead of it.
// Where more threads have work than there are cores, a thread that spins takes a core from a thread
// that has work, maybe from the very one that it waits for.  SpinWhileIdle ends as soon as it sees
// that.
// Thread-safety: SpinUntil and SpinWhileIdle as `done`; IdleSpin: none.
#pragma once

#include <chrono>
#include <thread>

#include "storage/clock.h"

namespace larder {

// Says how long a thread may spin: until a given time, and only while no other thread wants its
// core.  Another thread wants it if two calls of On lie more than kLate apart: then this thread was
// off its core in between, because it yielded and did not get the core back, or was preempted.
// From then on On returns false for good.
class IdleSpin {
 public:
  // The longest time between two calls that counts as spinning.  A check that finds nothing, with
  // the yield after it, takes a microsecond or two; another thread that gets the core in between
  // usually keeps it for longer than this.
  static constexpr std::chrono::microseconds kLate{20};

  explicit IdleSpin(TimePoint until) : until_(until) {}

  // The caller calls this before or after each check for what it waits for, with the current time.
  // Returns false if the caller must stop spinning and sleep, by a wait that checks once more
  // itself.
  [[nodiscard]] bool On(TimePoint now) {
    if (last_ + kLate < now) until_ = TimePoint::min();
    last_ = now;
    return now < until_;
  }

 private:
  TimePoint until_;
  // Of the latest call.  The initial value makes the first call never late.
  TimePoint last_ = TimePoint::max() - kLate;
};

// Calls done() again and again, and yields in between, since the thread that makes it true may need
// this very core.  Returns false if done() was not true in time; once `until` has passed, done() is
// not called at all.
template <class Done>
[[nodiscard]] bool SpinUntil(TimePoint until, Done done) {
  while (SteadyNow() < until) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

// As SpinUntil, but also returns false if another thread wants the core (IdleSpin).
// REQUIRES: the caller's real wait checks `done` again, which may have become true while another
// thread had the core.
template <class Done>
[[nodiscard]] bool SpinWhileIdle(TimePoint until, Done done) {
  IdleSpin look(until);
  while (look.On(SteadyNow())) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace larder
