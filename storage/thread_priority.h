// The share of the cores that the kernel gives to one thread of the daemon when cores are scarce.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

namespace larder {

enum class ThreadPriority : int8_t {
  kUrgent = -10,    // the thread accepts connections: new clients wait for it during a flood
  kOrdinary = 0,    // a thread that an urgent one starts is urgent too, unless it takes this
  kYielding = 2,    // some requests wait for the thread; it must not slow the others
  kBackground = 10  // the thread must not slow readers and writers
};

// Sets the priority of the calling thread.  kUrgent has no effect in a process that has neither
// RLIMIT_NICE (LimitNICE in its systemd unit) nor CAP_SYS_NICE.  A thread of kYielding or
// kBackground that the kernel wakes, for example when a read from the disk has ended, waits for the
// end of the running thread's time slice (SCHED_BATCH): otherwise it would interrupt an engine's
// thread for a time slice of its own.  If the operator gave the daemon another scheduling policy,
// that policy stays.
inline void SetThreadPriority(ThreadPriority priority) {
  const struct sched_param none {};
  const bool interrupts = priority <= ThreadPriority::kOrdinary;
  if (const int policy = sched_getscheduler(gettid());
      policy == SCHED_OTHER || policy == SCHED_BATCH)
    (void)sched_setscheduler(gettid(), interrupts ? SCHED_OTHER : SCHED_BATCH, &none);
  // With a thread id, setpriority changes this thread alone.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), static_cast<int>(priority));
}

}  // namespace larder
