// Makes this process one of another user, without groups, for good.
//
// Ownership: none.  Thread-safety: before any thread was started.
#pragma once

#include <grp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "tests/e2e/support/die_with.h"

namespace larder::e2e {

// Users that this machine has not.
inline constexpr uid_t kAttackerUid = 64'901;
inline constexpr uid_t kStagedVictimUid = 64'902;

// 0: stays what it is.  `gid`: its only group then.  Ends the program if it cannot; the program
// then dies with the process that started it.
inline void BecomeUser(uid_t uid, gid_t gid) {
  const pid_t parent = getppid();
  struct rlimit limit {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (uid != 0 && (setgroups(0, nullptr) != 0 || setresgid(gid, gid, gid) != 0 ||
                   setresuid(uid, uid, uid) != 0 || setuid(0) == 0)) {
    std::fprintf(stderr, "this process cannot become user %u\n", uid);
    _exit(2);
  }
  DieWith(parent);  // which a change of user has forgotten
}

}  // namespace larder::e2e
