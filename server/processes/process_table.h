// The processes that attached over the sideband, their tokens, and the only proof of death that the
// daemon accepts: the pidfd.
//
// The table does not own what belongs to a process, such as leases and staging segments; the owners
// of those learn of a death from the DeathCallback.  A closed socket is not a death.  The table
// does not see a process that shares the memory of an attached process without being its thread
// (vfork, CLONE_VM).
//
// An entry and its pidfd live until the table notices that its process is dead, or has no sideband
// connection, no session and no quarantine.  If the process connects again while its entry lives,
// it gets the same ProcessId and another token; later it gets another id.  Ids are never reused, so
// a process that reuses a pid gets another id: a pid stands for an entry only while the entry's
// pidfd reports the process alive, and two live processes never share a pid.
//
// Ownership: Daemon creates it; it outlives the Sideband and the sessions.
// Thread-safety: all methods may be called from any thread, except that one thread calls Start,
// once, and Stop.
// Locks: mu_ is acquired before the lock of Shares, and is held while Shares reports a refusal.
// The death callback runs without mu_.
// Lifecycle: Create -> Start -> ... -> Stop (joins; no callback after it) -> destroyed.
// Limits: processes_max entries, of which each uid has a share if Options::shares is set;
// tokens_per_process_max tokens for each entry.  It needs Linux 5.3.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/sideband_frames.h"
#include "proto/frames/wake_up.h"
#include "server/processes/peer_process.h"
#include "server/runtime/shares.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

// The process that a token stands for.  The uid and the right to write are those of the connection
// for which the token was issued: a process may change its uid between two connections.
struct AttachedProcess {
  ProcessId id;
  pid_t pid = 0;
  uid_t uid = 0;
  bool writable = false;  // whether its uid may map slabs writable
};

[[nodiscard]] inline ShareHolder HolderOf(const AttachedProcess& process) {
  return {.uid = process.uid, .process = process.id, .pid = process.pid};
}

class ProcessTable {
 public:
  struct Options {
    size_t processes_max = 1024;
    // The upper limit of a process's tokens: one for each open connection and, while the process
    // has a session, those of closed connections.  At the limit a new connection makes the oldest
    // token of a closed connection invalid; if there is none, the new connection is refused.
    size_t tokens_per_process_max = 64;
    Shares* shares = nullptr;  // limits the entries of each uid; borrowed; null disables that
    [[nodiscard]] absl::Status Validate() const;
  };
  using DeathCallback = std::function<void(ProcessId)>;

  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ProcessTable>> Create(const Options& options);
  ~ProcessTable();
  ProcessTable(const ProcessTable&) = delete;
  ProcessTable& operator=(const ProcessTable&) = delete;

  // `on_death` runs on the table's own thread, once for each entry whose process the table finds
  // dead.  By then that process runs no thread and maps no memory.  The call comes after every
  // AddSession and AddQuarantine of that id that returned true.  The callback may call any method
  // except Start and Stop; a slow callback delays the report of the next death.
  void Start(DeathCallback on_death);
  void Stop();

  struct Attachment {
    ProcessId process;
    SidebandToken token{};
  };
  // Adds a connection of this process.  Returns ResourceExhausted at a limit or share, Unavailable
  // if the table notices that the process is dead, or another error.
  [[nodiscard]] absl::StatusOr<Attachment> Attach(PeerProcess peer, bool writable);
  // Called when the connection that got the token is closed.  The token becomes invalid at once,
  // or, if the process has sessions, at the latest when the last of them is removed.
  void Detach(const SidebandToken& token);

  // Returns nullopt if the token is invalid, as it is at the latest when the table has noticed that
  // its process is dead.
  [[nodiscard]] std::optional<AttachedProcess> Find(const SidebandToken& token) const;
  // Returns true if the process has an entry.  The process may be dead all the same.
  [[nodiscard]] bool Contains(ProcessId process) const;

  // While the process lives, its sessions and quarantines keep its entry.  AddSession and
  // AddQuarantine return false if it has no entry: it died, or its entry was erased as unused.  The
  // caller cannot rely on the death callback then.
  [[nodiscard]] bool AddSession(ProcessId process);
  [[nodiscard]] bool AddQuarantine(ProcessId process);
  // RemoveSession undoes one AddSession, and RemoveQuarantine one AddQuarantine.  Both are no-ops
  // if the process has no entry any more.
  void RemoveSession(ProcessId process);
  void RemoveQuarantine(ProcessId process);

  struct Counts {
    size_t processes = 0, tokens = 0, connections = 0, sessions = 0, quarantines = 0;
  };
  [[nodiscard]] Counts counts() const;

 private:
  struct Entry {
    PeerProcess peer;
    Shares::Ticket place;
    size_t connections = 0;
    size_t sessions = 0;
    size_t quarantines = 0;
    std::deque<SidebandToken> tokens;  // the oldest first
  };
  struct Token {
    AttachedProcess process;
    bool connected = true;
  };
  // Takes the first bytes of the token, which is random.
  struct TokenHash {
    size_t operator()(const SidebandToken& token) const;
  };
  ProcessTable(const Options& options, FileDescriptor epoll, WakeUp wake);

  [[nodiscard]] absl::StatusOr<ProcessId> EntryOf(PeerProcess peer) LARDER_REQUIRES(mu_);
  void EraseToken(Entry& entry, const SidebandToken& token) LARDER_REQUIRES(mu_);
  void EraseClosedTokens(Entry& entry) LARDER_REQUIRES(mu_);
  void EraseIfUnused(ProcessId process) LARDER_REQUIRES(mu_);
  void Erase(ProcessId process) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool Add(ProcessId process, size_t Entry::*count);
  void Remove(ProcessId process, size_t Entry::*count);
  void Reap();

  const Options options_;
  const FileDescriptor epoll_;  // polls the pidfds, keyed by ProcessId, and wake_ as id 0
  const WakeUp wake_;
  DeathCallback on_death_;
  std::thread reaper_;

  mutable Mutex mu_;
  uint64_t last_id_ LARDER_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ProcessId, Entry> entries_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<pid_t, ProcessId> by_pid_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<SidebandToken, Token, TokenHash> tokens_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
