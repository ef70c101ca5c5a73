// No process of a test outlives the test, however it ends.
//
// Ownership: none.  Thread-safety: safe between fork and exec.
#pragma once

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

namespace larder::e2e {

// Has the kernel kill this process when the thread that made it ends; ends it now if `parent`, as
// it was before the fork, has gone already.  A change of user or group forgets it: call it
// afterwards.  An exec keeps it.
inline void DieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

}  // namespace larder::e2e
