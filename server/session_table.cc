#include "server/session_table.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace larder {

absl::StatusOr<std::shared_ptr<AttachedSession>> SessionTable::Add(
    SessionDeps& deps, std::optional<AttachedProcess> process, std::string peer,
    SessionSink& sink) {
  absl::StatusOr<std::shared_ptr<AttachedSession>> session =
      AddUncounted(deps, std::move(process), std::move(peer), sink);
  ++(session.ok() ? deps.counters.sessions_attached : deps.counters.sessions_refused);
  return session;
}

absl::StatusOr<std::shared_ptr<AttachedSession>> SessionTable::AddUncounted(
    SessionDeps& deps, std::optional<AttachedProcess> process, std::string peer,
    SessionSink& sink) {
  MutexLock lock(mu_);
  if (draining_) return absl::UnavailableError("larderd is draining: attach again when it is back");
  if (sessions_.size() >= sessions_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("limit of ", sessions_max_, " sessions reached; --sessions-max raises it"));
  }
  const SessionId id{next_id_++};
  absl::StatusOr<std::shared_ptr<AttachedSession>> session =
      AttachedSession::Create(deps, id, std::move(process), std::move(peer), sink);
  if (session.ok()) sessions_.emplace(id, *session);
  return session;
}

void SessionTable::Remove(SessionId id) {
  std::shared_ptr<AttachedSession> gone;  // destroyed outside the lock
  MutexLock lock(mu_);
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return;
  gone = std::move(it->second);
  sessions_.erase(it);
}

std::shared_ptr<AttachedSession> SessionTable::Find(SessionId id) const {
  MutexLock lock(mu_);
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<AttachedSession>> SessionTable::All() const {
  std::vector<std::shared_ptr<AttachedSession>> all;
  MutexLock lock(mu_);
  all.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) all.push_back(session);
  return all;
}

size_t SessionTable::Drain() {
  {
    MutexLock lock(mu_);
    draining_ = true;  // under the lock: a session is either refused by Add or in All
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
