// The share of the cores that the kernel gives to one thread of the daemon when cores are scarce.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>

namespace larder {

enum class ThreadPriority : int8_t {
  kAccepting = -10,  // new clients wait for it while others flood the socket
  kBackground = 10,  // readers and writers must not notice it
};

// Sets the priority of the calling thread.  Does nothing if the system does not permit it: a
// process needs RLIMIT_NICE (LimitNICE in its unit) or CAP_SYS_NICE for kAccepting.
inline void SetThreadPriority(ThreadPriority priority) {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), static_cast<int>(priority));
}

}  // namespace larder
