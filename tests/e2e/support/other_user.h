// Gives this process permanently to another user, without supplementary groups.
//
// Ownership: none.  Thread-safety: call it before the process starts any thread.
#pragma once

#include <grp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "tests/e2e/support/die_with.h"

namespace larder::e2e {

// Users that this machine does not have.
inline constexpr uid_t kAttackerUid = 64'901;
inline constexpr uid_t kStagedVictimUid = 64'902;

// Makes this a process of user `uid`, with `gid` as its only group, and ends the program if that
// fails.  `uid` 0 leaves the user and the groups unchanged.  In either case it raises the limit of
// descriptors as far as it may, and the program dies with the process that started it.
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
  DieWith(parent);  // here, because a change of user clears the setting
}

}  // namespace larder::e2e
