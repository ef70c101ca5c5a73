// What a daemon says of an attack, and what it takes of memory, as an operator finds out: log,
// metrics, `larderctl status`, /proc.
//
// Thread-safety: pure functions; StatusOf runs a program.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace larder::e2e {

// What a daemon has resident beside its pool.  All 0: there is no such process.
struct ResidentBytes {
  uint64_t own = 0;      // and what it maps of session pages and programs
  uint64_t staging = 0;  // of sessions' staging segments, which have limits of their own
};
[[nodiscard]] ResidentBytes BytesBesidePool(pid_t daemon);

struct Attackers {
  uid_t uid = 0;
  std::vector<pid_t> pids;
  bool unnamed = false;  // they come without a sideband, too, so that nothing says who they are
};
// Lines of `text`, beyond those of `before` with which it begins, that name the attackers: "uid 7",
// "pid 77", and of unnamed ones that callers without a sideband hold ten or more of something, or
// were refused it, for of bystanders neither is so.
[[nodiscard]] std::vector<std::string> LinesThatName(const std::string& text,
                                                     const std::string& before,
                                                     const Attackers& who);

// Counters that speak of something refused or cut off, and are larger than before.
[[nodiscard]] std::vector<std::string> MetricsThatGrew(const std::string& before,
                                                       const std::string& now);

// What is held of each kind of thing that callers have a share of: of /metrics.
[[nodiscard]] std::map<std::string, double> SharesHeld(const std::string& scrape);

// "free 12 MiB, stored 52 MiB": of /metrics.
[[nodiscard]] std::string PoolText(const std::string& scrape);

// What `larderctl status` prints; its error if it fails.
[[nodiscard]] std::string StatusOf(const std::string& socket_dir);

}  // namespace larder::e2e
