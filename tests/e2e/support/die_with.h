// Ties the processes of a test to it, so that none outlives the test, however the test ends.
//
// Ownership: none.  Thread-safety: DieWith is safe between fork and exec.
#pragma once

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

namespace larder::e2e {

// Makes the kernel kill this process when the thread that created it ends.  Exits at once if the
// parent, whose pid before the fork was `parent`, has already ended.  A change of user or group
// clears the setting, so call it afterwards; an exec keeps it.
inline void DieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

}  // namespace larder::e2e
