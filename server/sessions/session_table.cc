#include "server/sessions/session_table.h"

#include <utility>

namespace larder {

absl::StatusOr<std::shared_ptr<AttachedSession>> SessionTable::Add(
    SessionDeps& deps, std::optional<AttachedProcess> process, const ShareHolder& holder,
    std::string peer, SessionSink& sink) {
  absl::StatusOr<std::shared_ptr<AttachedSession>> session =
      AddUncounted(deps, std::move(process), holder, std::move(peer), sink);
  ++(session.ok() ? deps.counters.sessions_attached : deps.counters.sessions_refused);
  return session;
}

absl::StatusOr<std::shared_ptr<AttachedSession>> SessionTable::AddUncounted(
    SessionDeps& deps, std::optional<AttachedProcess> process, const ShareHolder& holder,
    std::string peer, SessionSink& sink) {
  MutexLock lock(mu_);
  if (draining_) return absl::UnavailableError("larderd is draining: attach again when it is back");
  Shares::Answer place = deps.shares.Of(holder).Take(ShareKind::kSessions);
  if (!place.admitted()) return absl::ResourceExhaustedError(place.why);
  const SessionId id{next_id_++};
  absl::StatusOr<std::shared_ptr<AttachedSession>> session =
      AttachedSession::Create(deps, id, std::move(process), holder, std::move(peer), sink);
  if (session.ok()) sessions_.emplace(id, Entry{*session, std::move(place.ticket)});
  return session;
}

void SessionTable::Remove(SessionId id) {
  Entry gone;  // destroyed outside the lock
  MutexLock lock(mu_);
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  gone = std::move(it->second);
  sessions_.erase(it);
}

std::shared_ptr<AttachedSession> SessionTable::Find(SessionId id) const {
  MutexLock lock(mu_);
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second.session;
}

std::vector<std::shared_ptr<AttachedSession>> SessionTable::All() const {
  std::vector<std::shared_ptr<AttachedSession>> all;
  MutexLock lock(mu_);
  all.reserve(sessions_.size());
  for (const auto& [id, entry] : sessions_) all.push_back(entry.session);
  return all;
}

size_t SessionTable::Drain(TimePoint now) {
  {
    MutexLock lock(mu_);
    refuses_from_ = now + AttachedSession::kDrainGrace;
    draining_ = true;  // under the lock, so that each session is either refused by Add or in All
  }
  const std::vector<std::shared_ptr<AttachedSession>> all = All();
  for (const std::shared_ptr<AttachedSession>& session : all) session->Drain();
  return all.size();
}

size_t SessionTable::size() const {
  MutexLock lock(mu_);
  return sessions_.size();
}

}  // namespace larder
