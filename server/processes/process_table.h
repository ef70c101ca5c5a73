// The processes that attached by the sideband, their tokens, and the one proof of death that the
// daemon accepts: the pidfd.
//
// Does not hold what belongs to a process (leases, reservations, staging segments): their owners
// hear of a death by the callback.  A closed socket is not a death, and a process that shares its
// memory with another one without being its thread (vfork, CLONE_VM) is out of its sight.
//
// An entry lives while it has a sideband connection, a session or a quarantine; its pidfd with it.
// The same process that connects again has the same ProcessId and one more token.  Ids are never
// reused, so that a reused pid gets another one: a pid stands for the entry only while the entry's
// pidfd says alive, and two live processes never share a pid.
//
// Ownership: made by server/main, outlives the Sideband and the sessions.
// Thread-safety: all methods from any thread; Start and Stop once each, from one.
// Lifecycle: Create -> Start -> ... -> Stop (joins; no callback after it) -> destroyed.
// Limits: processes_max entries, of which each uid has a share, as they may outlive connections;
// tokens_per_process_max tokens each.  Needs Linux 5.3.
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
#include "server/processes/peer_process.h"
#include "server/runtime/shares.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

// What a token stands for.  The rights are those of the connection that it came by: a process may
// change its uid between two.
struct AttachedProcess {
  ProcessId id;
  pid_t pid = 0;
  uid_t uid = 0;
  bool writable = false;  // its uid may map slabs writable
};

[[nodiscard]] inline ShareHolder HolderOf(const AttachedProcess& process) {
  return {.uid = process.uid, .process = process.id, .pid = process.pid};
}

class ProcessTable {
 public:
  struct Options {
    size_t processes_max = 1024;
    // Of connections and of sessions that outlive theirs; above it the oldest closed one dies.
    size_t tokens_per_process_max = 64;
    Shares* shares = nullptr;  // of entries, by uid; borrowed; null: whoever comes has one
    [[nodiscard]] absl::Status Validate() const;
  };
  using DeathCallback = std::function<void(ProcessId)>;

  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ProcessTable>> Create(const Options& options);
  ~ProcessTable();
  ProcessTable(const ProcessTable&) = delete;
  ProcessTable& operator=(const ProcessTable&) = delete;

  // `on_death` runs on the reaper's thread, once per death of an entry, after which nothing of that
  // process runs or maps.  It follows every AddSession and AddQuarantine of the id that said true.
  // It may call any method but Stop; a slow one delays the next death.
  void Start(DeathCallback on_death);
  void Stop();

  struct Attachment {
    ProcessId process;
    SidebandToken token{};
  };
  // One more connection of this process.  ResourceExhausted: a limit, or the share of its uid.
  [[nodiscard]] absl::StatusOr<Attachment> Attach(PeerProcess peer, bool writable);
  // The connection that got the token is closed.  The token dies with it, or with the last session
  // of the process.
  void Detach(const SidebandToken& token);

  // Nothing once the token or its process is dead.
  [[nodiscard]] std::optional<AttachedProcess> Find(const SidebandToken& token) const;
  // The process has an entry; it may still die the next moment.
  [[nodiscard]] bool Contains(ProcessId process) const;

  // False: the process is dead or gone; the callback has said so or will not.
  [[nodiscard]] bool AddSession(ProcessId process);
  [[nodiscard]] bool AddQuarantine(ProcessId process);
  // Each takes back one Add.  Nothing happens when the process died since.
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
    std::deque<SidebandToken> tokens;  // oldest first
  };
  struct Token {
    AttachedProcess process;
    bool connected = true;
  };
  // Uniform already.
  struct TokenHash {
    size_t operator()(const SidebandToken& token) const;
  };
  ProcessTable(const Options& options, FileDescriptor epoll, FileDescriptor wake);

  [[nodiscard]] absl::StatusOr<ProcessId> EntryOf(PeerProcess peer) LARDER_REQUIRES(mu_);
  void EraseToken(Entry& entry, const SidebandToken& token) LARDER_REQUIRES(mu_);
  void EraseClosedTokens(Entry& entry) LARDER_REQUIRES(mu_);
  void EraseIfUnused(ProcessId process) LARDER_REQUIRES(mu_);
  void Erase(ProcessId process) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool Add(ProcessId process, size_t Entry::*count);
  void Remove(ProcessId process, size_t Entry::*count);
  void Reap();

  const Options options_;
  const FileDescriptor epoll_;  // the pidfds, by ProcessId, and wake_ as id 0
  const FileDescriptor wake_;
  DeathCallback on_death_;
  std::thread reaper_;

  mutable Mutex mu_;
  uint64_t last_id_ LARDER_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ProcessId, Entry> entries_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<pid_t, ProcessId> by_pid_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<SidebandToken, Token, TokenHash> tokens_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
