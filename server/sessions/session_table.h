// All sessions of the daemon.  Assigns their ids and tells all of them to drain.
//
// Ownership: shares each session with its stream.
// Thread-safety: all methods from any thread.
// Locks: mu_ is held while a session is created.  Sessions are called, and removed ones destroyed,
// without it.
// Limits: the shares of sessions (ShareKind::kSessions); beyond them Add returns ResourceExhausted.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/sessions/session.h"
#include "storage/mutex.h"

namespace larder {

class SessionTable {
 public:
  // Creates a session with a new id.  Returns ResourceExhausted at a limit, Unavailable while
  // draining, or another error if the session cannot be created.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<AttachedSession>> Add(
      SessionDeps& deps, std::optional<AttachedProcess> process, const ShareHolder& holder,
      std::string peer, SessionSink& sink) LARDER_EXCLUDES(mu_);
  void Remove(SessionId id) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::shared_ptr<AttachedSession> Find(SessionId id) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<std::shared_ptr<AttachedSession>> All() const LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t size() const LARDER_EXCLUDES(mu_);
  // Refuses further sessions (Unavailable), tells the existing ones to finish, and returns how many
  // there are.
  size_t Drain(TimePoint now) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool draining() const { return draining_.load(std::memory_order_relaxed); }
  // Returns true once a drain's grace period (AttachedSession::kDrainGrace) has passed.  Calls
  // outside of sessions are then refused, except those that are served during a drain too.
  [[nodiscard]] bool RefusesCalls(TimePoint now) const {
    return now >= refuses_from_.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] absl::StatusOr<std::shared_ptr<AttachedSession>> AddUncounted(
      SessionDeps& deps, std::optional<AttachedProcess> process, const ShareHolder& holder,
      std::string peer, SessionSink& sink) LARDER_EXCLUDES(mu_);

  std::atomic<bool> draining_{false};
  std::atomic<TimePoint> refuses_from_{TimePoint::max()};
  mutable Mutex mu_;
  uint64_t next_id_ LARDER_GUARDED_BY(mu_) = 1;
  struct Entry {
    std::shared_ptr<AttachedSession> session;
    Shares::Ticket place;
  };
  absl::flat_hash_map<SessionId, Entry> sessions_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
