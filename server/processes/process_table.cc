#include "server/processes/process_table.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "server/runtime/epoll.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr uint64_t kWakeProcess = 0;  // no process has this id

absl::Status WatchProcess(int epoll, int fd, uint64_t id) {
  if (AddToEpoll(epoll, fd, EPOLLIN, id)) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot watch a process for its death");
}

SidebandToken NewToken() {
  SidebandToken token;
  // getrandom returns so few bytes whole.
  LARDER_CHECK(getrandom(token.data(), token.size(), 0) == ssize_t{kTokenBytes});
  return token;
}

}  // namespace

absl::Status ProcessTable::Options::Validate() const {
  if (processes_max == 0 || tokens_per_process_max == 0) {
    return absl::InvalidArgumentError("the limits of processes and of tokens must be at least 1");
  }
  return absl::OkStatus();
}

size_t ProcessTable::TokenHash::operator()(const SidebandToken& token) const {
  size_t hash;
  std::memcpy(&hash, token.data(), sizeof hash);
  return hash;
}

ProcessTable::ProcessTable(const Options& options, FileDescriptor epoll, WakeUp wake)
    : options_(options), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

ProcessTable::~ProcessTable() { Stop(); }

absl::StatusOr<std::unique_ptr<ProcessTable>> ProcessTable::Create(const Options& options) {
  LARDER_RETURN_IF_ERROR(options.Validate());
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return absl::ErrnoToStatus(errno, "epoll_create1");
  LARDER_ASSIGN_OR_RETURN(WakeUp wake, WakeUp::Open("eventfd"));
  LARDER_RETURN_IF_ERROR(WatchProcess(epoll.get(), wake.fd(), kWakeProcess));
  return absl::WrapUnique(new ProcessTable(options, std::move(epoll), std::move(wake)));
}

void ProcessTable::Start(DeathCallback on_death) {
  LARDER_CHECK(!reaper_.joinable());
  on_death_ = std::move(on_death);
  reaper_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "reaper");
    Reap();
  });
}

void ProcessTable::Stop() {
  if (!reaper_.joinable()) return;
  wake_.Wake();
  reaper_.join();
}

void ProcessTable::Reap() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    LARDER_CHECK(ready >= 0 || errno == EINTR);
    for (int i = 0; i < ready; ++i) {
      const ProcessId process{events[static_cast<size_t>(i)].data.u64};
      if (process.value == kWakeProcess) return;
      {
        MutexLock lock(mu_);
        // The entry may have been erased as unused between the kernel's report and this line.
        if (!entries_.contains(process)) continue;
        Erase(process);
      }
      on_death_(process);
    }
  }
}

absl::StatusOr<ProcessTable::Attachment> ProcessTable::Attach(PeerProcess peer, bool writable) {
  MutexLock lock(mu_);
  AttachedProcess attached{.id = {}, .pid = peer.pid(), .uid = peer.uid(), .writable = writable};
  LARDER_ASSIGN_OR_RETURN(ProcessId id, EntryOf(std::move(peer)));
  attached.id = id;
  Entry& entry = entries_.at(id);
  if (entry.tokens.size() == options_.tokens_per_process_max) {
    const auto closed = std::ranges::find_if(
        entry.tokens, [this](const SidebandToken& t)
                          LARDER_NO_THREAD_SAFETY_ANALYSIS { return !tokens_.at(t).connected; });
    if (closed == entry.tokens.end()) {
      return absl::ResourceExhaustedError(absl::StrCat("a process has at most ",
                                                       options_.tokens_per_process_max,
                                                       " sideband connections; close one"));
    }
    EraseToken(entry, SidebandToken(*closed));
  }
  const SidebandToken token = NewToken();
  LARDER_CHECK(tokens_.try_emplace(token, Token{.process = attached}).second);
  entry.tokens.push_back(token);
  ++entry.connections;
  return Attachment{.process = id, .token = token};
}

// Returns the id of the entry of this process, and creates the entry if there is none.
absl::StatusOr<ProcessId> ProcessTable::EntryOf(PeerProcess peer) {
  if (const auto known = by_pid_.find(peer.pid()); known != by_pid_.end()) {
    // `peer` already existed before this line.  If the entry's process is alive now, and `peer` is
    // alive after that, both lived at the same moment with the same pid: they are the same process.
    if (entries_.at(known->second).peer.alive()) {
      if (!peer.alive()) return absl::UnavailableError("the process is dead");
      return known->second;
    }
  }
  if (entries_.size() >= options_.processes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the daemon serves at most ", options_.processes_max,
                     " processes; stop some, or raise --sessions-max and LimitNOFILE (ulimit -n)"));
  }
  Shares::Answer place;
  if (options_.shares != nullptr) {
    // The uid is charged, not the process: otherwise each of a process's children would have a
    // share of its own.
    place = options_.shares->Of({.uid = peer.uid(), .process = {}}).Take(ShareKind::kProcesses);
    if (!place.admitted()) return absl::ResourceExhaustedError(place.why);
  }
  const ProcessId id{++last_id_};
  LARDER_RETURN_IF_ERROR(WatchProcess(epoll_.get(), peer.pidfd(), id.value));
  by_pid_[peer.pid()] = id;  // the entry of a dead process with this pid may stay for a while
  entries_.try_emplace(
      id, Entry{.peer = std::move(peer), .place = std::move(place.ticket), .tokens = {}});
  return id;
}

void ProcessTable::Detach(const SidebandToken& token) {
  MutexLock lock(mu_);
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) return;  // its process died
  LARDER_CHECK(found->second.connected);
  found->second.connected = false;
  const ProcessId process = found->second.process.id;
  Entry& entry = entries_.at(process);
  --entry.connections;
  if (entry.sessions == 0) EraseToken(entry, token);
  EraseIfUnused(process);
}

std::optional<AttachedProcess> ProcessTable::Find(const SidebandToken& token) const {
  MutexLock lock(mu_);
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) return std::nullopt;
  return found->second.process;
}

bool ProcessTable::Contains(ProcessId process) const {
  MutexLock lock(mu_);
  return entries_.contains(process);
}

bool ProcessTable::AddSession(ProcessId process) { return Add(process, &Entry::sessions); }
bool ProcessTable::AddQuarantine(ProcessId process) { return Add(process, &Entry::quarantines); }
void ProcessTable::RemoveSession(ProcessId process) { Remove(process, &Entry::sessions); }
void ProcessTable::RemoveQuarantine(ProcessId process) { Remove(process, &Entry::quarantines); }

bool ProcessTable::Add(ProcessId process, size_t Entry::*count) {
  MutexLock lock(mu_);
  const auto found = entries_.find(process);
  if (found == entries_.end()) return false;
  ++(found->second.*count);
  return true;
}

void ProcessTable::Remove(ProcessId process, size_t Entry::*count) {
  MutexLock lock(mu_);
  const auto found = entries_.find(process);
  if (found == entries_.end()) return;
  LARDER_CHECK(found->second.*count > 0);
  --(found->second.*count);
  if (found->second.sessions == 0) EraseClosedTokens(found->second);
  EraseIfUnused(process);
}

ProcessTable::Counts ProcessTable::counts() const {
  MutexLock lock(mu_);
  Counts counts{.processes = entries_.size(), .tokens = tokens_.size()};
  for (const auto& [id, entry] : entries_) {
    counts.connections += entry.connections;
    counts.sessions += entry.sessions;
    counts.quarantines += entry.quarantines;
  }
  return counts;
}

void ProcessTable::EraseToken(Entry& entry, const SidebandToken& token) {
  tokens_.erase(token);
  std::erase(entry.tokens, token);
}

void ProcessTable::EraseClosedTokens(Entry& entry) {
  std::erase_if(entry.tokens, [this](const SidebandToken& t) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = tokens_.find(t);
    if (found->second.connected) return false;
    tokens_.erase(found);
    return true;
  });
}

void ProcessTable::EraseIfUnused(ProcessId process) {
  const Entry& entry = entries_.at(process);
  if (entry.connections == 0 && entry.sessions == 0 && entry.quarantines == 0) Erase(process);
}

void ProcessTable::Erase(ProcessId process) {
  const auto found = entries_.find(process);
  Entry& entry = found->second;
  for (const SidebandToken& token : entry.tokens) tokens_.erase(token);
  // by_pid_ may already name the entry of a later process with this pid, which must stay.
  const auto by_pid = by_pid_.find(entry.peer.pid());
  if (by_pid != by_pid_.end() && by_pid->second == process) by_pid_.erase(by_pid);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry.peer.pidfd(), nullptr);
  entries_.erase(found);  // closes the pidfd
}

}  // namespace larder
