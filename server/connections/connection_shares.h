// Limits how many connections there may be at once at one socket: in total, per uid and per
// process.
//
// The process is the one that connected, as the kernel names it.  For a process in a PID namespace
// that the daemon does not see, only the limits of its uid and of all apply.  Children that a
// process forks count as processes of their own, which is why a uid has a limit too.
// Ownership: values.  Thread-safety: none; the caller serializes.
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

// The process that opened the other end of a unix socket, by SO_PEERCRED.
struct SocketPeer {
  uid_t uid = 0;
  pid_t pid = 0;  // 0 if it is in a PID namespace that the daemon does not see
};
// Returns nullopt if the kernel does not report the peer.
// REQUIRES: `socket` is a connected unix socket.
[[nodiscard]] std::optional<SocketPeer> PeerOf(int socket);

enum class ShareRefusal : uint8_t { kNone, kAll, kUid, kProcess };

class ConnectionShares {
 public:
  struct Limits {
    size_t all = 0;
    size_t per_uid = 0;
    size_t per_process = 0;
    // The option that the text of a refusal names for per_process; null: none.
    const char* process_option = nullptr;
    // What the text of a refusal names for `all` and per_uid; null: nothing.
    const char* others_option = "LimitNOFILE (ulimit -n)";
    friend bool operator==(const Limits&, const Limits&) = default;
  };
  explicit ConnectionShares(const Limits& limits) : limits_(limits) {}

  // Counts one more connection of the peer and returns kNone, or returns the limit that refuses it.
  [[nodiscard]] ShareRefusal Take(const SocketPeer& peer);
  // REQUIRES: a Take for this peer returned kNone and was not given back yet.
  void Give(const SocketPeer& peer);

  [[nodiscard]] size_t count() const { return count_; }
  // Returns a text that names the limit that `refusal` stands for, and what to do about it.  `what`
  // is the plural of what is limited, such as "connections".
  [[nodiscard]] std::string Explain(ShareRefusal refusal, const char* what) const;

 private:
  using Process = std::pair<uid_t, pid_t>;
  const Limits limits_;
  size_t count_ = 0;
  absl::flat_hash_map<uid_t, size_t> per_uid_;
  absl::flat_hash_map<Process, size_t> per_process_;
};

// What happened to the connections of one socket file.  Any thread may read the counters; the
// thread that accepts at the file writes them, except held_most, which threads of gRPC write.
struct ConnectionCounters {
  using Counter = std::atomic<uint64_t>;
  Counter open = 0;  // open now, as far as the accepting thread has noticed
  Counter accepted = 0;
  Counter over_all = 0;          // refused at the limit for all uids together
  Counter over_uid = 0;          // refused at the limit of a uid
  Counter over_process = 0;      // refused at the limit of a process
  Counter over_descriptors = 0;  // times that no descriptor or memory was left for one
  Counter carried_rights = 0;    // closed because descriptors may have come with them
  Counter held_most = 0;         // ended: too many bytes of incomplete messages, or long headers
  Counter reopened = 0;          // times that the listener was replaced
  Counter broken = 0;            // 1 while the socket cannot accept
  void Count(ShareRefusal refusal);
};

}  // namespace larder
