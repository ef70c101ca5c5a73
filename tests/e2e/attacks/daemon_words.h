// Finds out what a daemon reports about an attack and how much memory it takes, from what an
// operator can read: log, metrics, `larderctl status` and /proc.
//
// Thread-safety: pure functions; StatusOf runs a program.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace larder::e2e {

// The resident memory of a daemon without its pool.  All 0 if there is no such process.
struct ResidentBytes {
  uint64_t own = 0;      // includes session pages and program files that it maps
  uint64_t staging = 0;  // staging segments of sessions, which have their own limits
};
[[nodiscard]] ResidentBytes BytesBesidePool(pid_t daemon);

struct Attackers {
  uid_t uid = 0;
  std::vector<pid_t> pids;
  bool unnamed = false;  // they also call without a sideband, so that they have no name
};
// Returns the lines of `text` that name the attackers, without those of `before`, with which `text`
// begins.  An attacker is named by "uid 7" or "pid 77".  If attackers are unnamed, a line also
// counts if callers without a sideband hold ten or more of something, or were refused it: neither
// is true of bystanders.
[[nodiscard]] std::vector<std::string> LinesThatName(const std::string& text,
                                                     const std::string& before,
                                                     const Attackers& who);

// Returns the counters of refusals and cut-offs that are larger than before.
[[nodiscard]] std::vector<std::string> MetricsThatGrew(const std::string& before,
                                                       const std::string& now);

// Returns from /metrics how much of each kind of share is held.
[[nodiscard]] std::map<std::string, double> SharesHeld(const std::string& scrape);

// Returns from /metrics the use of the pool, such as "free 12 MiB, stored 52 MiB".
[[nodiscard]] std::string PoolText(const std::string& scrape);

// Returns what `larderctl status` prints, with its errors if it fails.
[[nodiscard]] std::string StatusOf(const std::string& socket_dir);

}  // namespace larder::e2e
