// Short waits that spin for what another thread is about to provide: waking a thread that sleeps
// may take longer.
//
// A caller should spin for a short time and then sleep.  If more threads have work than there are
// cores, a thread that spins takes a core from a thread that has work, maybe from the very one that
// it waits for.  So SpinWhileIdle stops when another thread seems to want its core.
// Thread-safety: SpinUntil and SpinWhileIdle are as thread-safe as their `done`; IdleSpin: none.
#pragma once

#include <chrono>
#include <thread>

#include "storage/clock.h"

namespace larder {

// Decides how long a thread may spin: until a given time, and only while no other thread seems to
// want its core.  If more than kLate passes between two calls of On, IdleSpin assumes that another
// thread had the core meanwhile; from then on, On returns false.
class IdleSpin {
 public:
  // One pass of a spin loop should take less than this, unless another thread gets the core.
  static constexpr std::chrono::microseconds kLate{20};

  explicit IdleSpin(TimePoint until) : until_(until) {}

  // A thread that spins calls this with the current time before each check of its condition.  If it
  // returns false, the thread must stop spinning, and must check its condition once more before it
  // sleeps.
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

// Calls done() repeatedly until it returns true or `until` has passed, and yields between the
// calls, since the thread that makes done() true may need this core.  Returns whether a call of
// done() returned true.  If `until` has already passed, returns false without calling done().
template <class Done>
[[nodiscard]] bool SpinUntil(TimePoint until, Done done) {
  while (SteadyNow() < until) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

// Calls done() repeatedly, and yields between the calls, until done() returns true, `until` has
// passed, or another thread seems to want this core (IdleSpin).  Returns whether a call of done()
// returned true; if `until` has already passed, done() is not called.
// REQUIRES: if this returns false, the caller checks done() again before it sleeps, since done()
// may have become true meanwhile.
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
