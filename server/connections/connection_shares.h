// How many connections there may be at once at one socket: in all, per uid and per process.
//
// A process is the one that connected, as the kernel names it; one in a PID namespace that the
// daemon does not see counts by its uid alone.  Children that a process forks count for themselves,
// which is what the share of a uid is for.
// Ownership: values.  Thread-safety: none.
// Lifecycle: Take -> Give, for each connection.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace larder {

// Who is at the other end of a unix socket, by SO_PEERCRED.
struct SocketPeer {
  uid_t uid = 0;
  pid_t pid = 0;  // 0: in a PID namespace that is not visible from here
};
// Nothing if `socket` is no connected unix socket.
[[nodiscard]] std::optional<SocketPeer> PeerOf(int socket);

enum class ShareRefusal : uint8_t { kNone, kAll, kUid, kProcess };

class ConnectionShares {
 public:
  struct Limits {
    size_t all = 0;
    size_t per_uid = 0;
    size_t per_process = 0;
    // What raises them, for those who are refused; null: nothing does.
    const char* process_option = nullptr;
    const char* others_option = "LimitNOFILE (ulimit -n)";
    friend bool operator==(const Limits&, const Limits&) = default;
  };
  explicit ConnectionShares(const Limits& limits) : limits_(limits) {}

  // kNone: the peer has one connection more.
  [[nodiscard]] ShareRefusal Take(const SocketPeer& peer);
  // REQUIRES: a Take of this peer that was not given back.
  void Give(const SocketPeer& peer);

  [[nodiscard]] size_t count() const { return count_; }
  // A sentence for the client and the log: which share, and what to do.  `what` is their plural.
  [[nodiscard]] std::string Explain(ShareRefusal refusal, const char* what) const;

 private:
  using Process = std::pair<uid_t, pid_t>;
  const Limits limits_;
  size_t count_ = 0;
  absl::flat_hash_map<uid_t, size_t> per_uid_;
  absl::flat_hash_map<Process, size_t> per_process_;
};

// What happened to the connections of one socket; written by its loop, read by any thread.
struct ConnectionCounters {
  using Counter = std::atomic<uint64_t>;
  Counter open = 0;  // now, as far as the loop has looked
  Counter accepted = 0;
  Counter over_all = 0;  // refused, by the share that was full
  Counter over_uid = 0;
  Counter over_process = 0;
  Counter over_descriptors = 0;  // refused, or left waiting, as the process has none left
  Counter carried_rights = 0;    // ended for descriptors that came along
  Counter held_most = 0;         // ended as too much of messages had come that were not whole
  Counter reopened = 0;          // times that its listener broke and was replaced
  Counter broken = 0;            // now: it cannot accept
  void Count(ShareRefusal refusal);
};

}  // namespace larder
