// Short waits that spin for what another thread is about to provide: waking a thread that sleeps
// takes longer than most of these waits last.
//
// A caller spins for a short time after it has had work, and then sleeps until there is more; it
// must not spin instead of sleeping.  If more threads have work than there are cores, a thread that
// spins takes a core from a thread that has work, maybe from the very one that it waits for.
// SpinWhileIdle stops spinning as soon as it detects this.
// Thread-safety: SpinUntil and SpinWhileIdle are as safe as `done`; IdleSpin has none.
#pragma once

#include <chrono>
#include <thread>

#include "storage/clock.h"

namespace larder {

// Decides how long a thread may spin: until a given time, and only while no other thread wants its
// core.  If more than kLate passes between two calls of On, the thread was off its core in between,
// because it yielded and did not get the core back, or was preempted: another thread wants the
// core, and On returns false from this call on.
class IdleSpin {
 public:
  // The longest time between two calls that counts as spinning.  A check that finds nothing, with
  // the yield after it, takes a microsecond or two; another thread that gets the core in between
  // usually keeps it for longer than this.
  static constexpr std::chrono::microseconds kLate{20};

  explicit IdleSpin(TimePoint until) : until_(until) {}

  // The caller calls this before or after each check for what it waits for, with the current time.
  // Returns false if the caller must stop spinning and sleep; before it sleeps it must check once
  // more.
  [[nodiscard]] bool On(TimePoint now) {
    if (last_ + kLate < now) until_ = TimePoint::min();
    last_ = now;
    return now < until_;
  }

 private:
  TimePoint until_;
  // The time of the latest call of On.  With the initial value the first call is never late.
  TimePoint last_ = TimePoint::max() - kLate;
};

// Calls done() again and again, and yields in between, since the thread that makes it true may need
// this very core.  Returns false if done() was not true before `until`.  If `until` has already
// passed, does not call done().
template <class Done>
[[nodiscard]] bool SpinUntil(TimePoint until, Done done) {
  while (SteadyNow() < until) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

// As SpinUntil, but also returns false if another thread wants the core (IdleSpin).
// REQUIRES: the caller checks done() again before it sleeps, since done() may have become true
// while another thread had the core.
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
