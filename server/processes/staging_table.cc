#include "server/processes/staging_table.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/memory/memfd.h"
#include "storage/status_macros.h"
#include "storage/thread_priority.h"

namespace larder {
namespace {

struct FreshSegment {
  std::unique_ptr<const StagingSegment> segment;
  FileDescriptor descriptor;
};

absl::Status NoSegment(int error, const char* what) {
  const bool no_room = error == ENOMEM || error == ENOSPC || error == EMFILE || error == ENFILE;
  return no_room ? absl::ResourceExhaustedError(absl::StrCat(
                       "the host has no memory or descriptor for a staging segment (", what,
                       ", errno ", error, "); use a smaller one, or try again later"))
                 : absl::ErrnoToStatus(error, absl::StrCat(what, " of a staging segment"));
}

absl::StatusOr<FreshSegment> MakeSegment(uid_t uid, ByteCount bytes) {
  const size_t size = bytes.value();
  FileDescriptor memfd(OpenMemfd("larder-staging"));
  if (!memfd) return NoSegment(errno, "memfd_create");
  if (ftruncate(memfd.get(), static_cast<off_t>(size)) != 0) return NoSegment(errno, "ftruncate");
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (base == MAP_FAILED) return NoSegment(errno, "mmap");
  FreshSegment fresh{
      std::make_unique<const StagingSegment>(std::span(static_cast<std::byte*>(base), size), uid),
      std::move(memfd)};
  if (madvise(base, size, MADV_DONTFORK) != 0 || madvise(base, size, MADV_DONTDUMP) != 0) {
    return NoSegment(errno, "madvise");
  }
  // Fails now if the kernel cannot remove pages: a client that keeps its descriptor would otherwise
  // keep the pages of a dropped segment.
  if (!fresh.segment->RemovePages()) return NoSegment(errno, "MADV_REMOVE");
  // Sealed before the client gets the descriptor: if the client shrank the file, an access by the
  // daemon could raise SIGBUS.
  if (fcntl(fresh.descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoSegment(errno, "sealing");
  }
  return fresh;
}

// Returns true if a segment of `bytes` fits into a limit of which `held` are used: it must fit into
// what is left, and into half of that if it is larger than kSmallBytes.
bool Fits(ByteCount bytes, ByteCount held, ByteCount limit) {
  const ByteCount left = limit - std::min(limit, held);
  return bytes <= left &&
         (bytes <= StagingTable::kSmallBytes || bytes <= ByteCount(left.value() / 2));
}

constexpr char kHalf[] = ", and a segment may take at most half of what is left; ";

}  // namespace

StagingSegment::~StagingSegment() { munmap(mapping_.data(), mapping_.size()); }

// MakeSegment has checked that RemovePages works; seals and kind of file cannot change afterwards.
bool StagingSegment::RemovePages() const {
  return madvise(mapping_.data(), mapping_.size(), MADV_REMOVE) == 0;
}

// The accounts of all users, and dropped segments that wait to be freed.  The table and every
// segment share the ledger, because it must outlive the segments.
// Thread-safety: all methods may be called from any thread.
class StagingTable::Ledger : public std::enable_shared_from_this<Ledger> {
 public:
  explicit Ledger(const Options& options) : options_(options) {}

  [[nodiscard]] absl::Status Charge(uid_t uid, ByteCount bytes) LARDER_EXCLUDES(mu_);
  void Uncharge(uid_t uid, ByteCount bytes) LARDER_EXCLUDES(mu_);
  // Frees a dropped segment: on a thread for its user if Options::frees_aside is true, otherwise
  // before this returns.  The segment stays charged until its pages are removed.
  void Free(std::unique_ptr<const StagingSegment> segment) LARDER_EXCLUDES(mu_);
  [[nodiscard]] ByteCount total() const LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return total_;
  }

 private:
  struct User {
    ByteCount bytes;
    uint32_t segments = 0;
    std::deque<std::unique_ptr<const StagingSegment>> dropped;
    bool freeing = false;  // whether a thread frees the dropped segments
  };
  [[nodiscard]] absl::Status CheckRoom(uid_t uid, const User& user, ByteCount bytes) const
      LARDER_REQUIRES(mu_);
  void FreeNow(std::unique_ptr<const StagingSegment> segment) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool StartThread(uid_t uid);
  void FreeAll(uid_t uid) LARDER_EXCLUDES(mu_);

  const Options options_;
  mutable Mutex mu_;
  absl::flat_hash_map<uid_t, User> users_ LARDER_GUARDED_BY(mu_);
  ByteCount total_ LARDER_GUARDED_BY(mu_);
};

absl::Status StagingTable::Ledger::CheckRoom(uid_t uid, const User& user, ByteCount bytes) const {
  if (user.segments >= options_.uid_segments_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the processes of uid ", uid, " have at most ", options_.uid_segments_max,
                     " staging segments, including dropped ones whose memory is not freed yet; "
                     "drop some, or try again later"));
  }
  if (!Fits(bytes, user.bytes, options_.uid_bytes_max)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the processes of uid ", uid, " have at most ", options_.uid_bytes_max.value(),
                     " bytes of staging (--staging-uid-limit)", kHalf,
                     "use a smaller segment, or end a session"));
  }
  if (!Fits(bytes, total_, options_.total_bytes_max)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all processes together have at most ", options_.total_bytes_max.value(),
                     " bytes of staging (--staging-total-limit)", kHalf,
                     "use a smaller segment, or try again later"));
  }
  return absl::OkStatus();
}

absl::Status StagingTable::Ledger::Charge(uid_t uid, ByteCount bytes) {
  MutexLock lock(mu_);
  const User none;
  const auto known = users_.find(uid);
  const User& before = known == users_.end() ? none : known->second;
  LARDER_RETURN_IF_ERROR(CheckRoom(uid, before, bytes));
  User& user = users_[uid];
  user.bytes += bytes;
  ++user.segments;
  total_ += bytes;
  return absl::OkStatus();
}

void StagingTable::Ledger::Uncharge(uid_t uid, ByteCount bytes) {
  MutexLock lock(mu_);
  const auto user = users_.find(uid);
  LARDER_CHECK(user != users_.end() && user->second.bytes >= bytes && user->second.segments > 0);
  user->second.bytes -= bytes;
  total_ -= bytes;
  if (--user->second.segments == 0 && !user->second.freeing) users_.erase(user);
}

void StagingTable::Ledger::FreeNow(std::unique_ptr<const StagingSegment> segment) {
  const uid_t uid = segment->uid();
  const ByteCount bytes(segment->bytes().size());
  const bool removed = segment->RemovePages();
  segment.reset();
  // If the pages were not removed, a client may keep them, so they stay charged to its user.
  if (removed) Uncharge(uid, bytes);
}

// Each user has its own thread, so processes that delay a thread delay only segments of their own
// user.
void StagingTable::Ledger::Free(std::unique_ptr<const StagingSegment> segment) {
  if (!options_.frees_aside) return FreeNow(std::move(segment));
  const uid_t uid = segment->uid();
  MutexLock lock(mu_);
  User& user = users_[uid];
  user.dropped.push_back(std::move(segment));
  // If no thread can be started, the segment stays queued, and charged, at least until another
  // segment of the user is dropped.
  if (!user.freeing) user.freeing = StartThread(uid);
}

// The thread is detached: the end of the daemon must not wait for a client that delays this thread.
bool StagingTable::Ledger::StartThread(uid_t uid) {
  struct Start {
    std::shared_ptr<Ledger> ledger;
    uid_t uid;
  };
  auto start = std::make_unique<Start>(Start{shared_from_this(), uid});
  const auto run = [](void* given) -> void* {
    pthread_setname_np(pthread_self(), "staging");
    SetThreadPriority(ThreadPriority::kOrdinary);  // an urgent thread starts it
    const std::unique_ptr<Start> taken(static_cast<Start*>(given));
    taken->ledger->FreeAll(taken->uid);
    return nullptr;
  };
  constexpr size_t kStackBytes = 64 << 10;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, run, start.get()) == 0;
  pthread_attr_destroy(&attributes);
  if (started) (void)start.release();  // the thread owns it now
  return started;
}

void StagingTable::Ledger::FreeAll(uid_t uid) {
  for (;;) {
    std::unique_ptr<const StagingSegment> segment;
    {
      MutexLock lock(mu_);
      const auto user = users_.find(uid);
      if (user->second.dropped.empty()) {
        user->second.freeing = false;
        if (user->second.segments == 0) users_.erase(user);
        return;
      }
      segment = std::move(user->second.dropped.front());
      user->second.dropped.pop_front();
    }
    FreeNow(std::move(segment));
  }
}

StagingTable::StagingTable(const Options& options)
    : options_(options), ledger_(std::make_shared<Ledger>(options)) {}

StagingTable::~StagingTable() = default;

absl::Status StagingTable::CheckProcess(ProcessId process, ByteCount bytes) const {
  const auto found = processes_.find(process);
  const size_t segments = found == processes_.end() ? 0 : found->second.segments.size();
  const ByteCount held = found == processes_.end() ? ByteCount(0) : found->second.bytes;
  if (segments >= options_.process_segments_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a process has at most ", options_.process_segments_max, " staging segments; drop one"));
  }
  if (Fits(bytes, held, options_.process_bytes_max)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a process has at most ", options_.process_bytes_max.value(),
      " bytes of staging (--staging-limit)", kHalf, "use a smaller segment, or drop one"));
}

absl::StatusOr<StagingTable::Made> StagingTable::Make(ProcessId process, uid_t uid,
                                                      ByteCount bytes) {
  if (bytes == ByteCount(0) || bytes.value() % kPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a staging segment must have a multiple of 4,096 bytes, not ", bytes.value()));
  }
  MutexLock lock(mu_);
  LARDER_RETURN_IF_ERROR(CheckProcess(process, bytes));
  if (last_id_ == std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError("the ids of staging segments are used up: restart larderd");
  }
  LARDER_RETURN_IF_ERROR(ledger_->Charge(uid, bytes));
  absl::StatusOr<FreshSegment> fresh = MakeSegment(uid, bytes);
  if (!fresh.ok()) {
    ledger_->Uncharge(uid, bytes);
    return fresh.status();
  }
  const auto free = [ledger = ledger_](const StagingSegment* segment) {
    ledger->Free(std::unique_ptr<const StagingSegment>(segment));
  };
  const uint32_t id = ++last_id_;
  Process& owner = processes_[process];
  owner.segments.emplace(id, std::shared_ptr<const StagingSegment>(fresh->segment.release(), free));
  owner.bytes += bytes;
  return Made{id, std::move(fresh->descriptor)};
}

std::shared_ptr<const StagingSegment> StagingTable::Get(ProcessId process, uint32_t id) const {
  MutexLock lock(mu_);
  const auto owner = processes_.find(process);
  if (owner == processes_.end()) return nullptr;
  const auto found = owner->second.segments.find(id);
  return found == owner->second.segments.end() ? nullptr : found->second;
}

bool StagingTable::Drop(ProcessId process, uint32_t id) {
  // Declared before the lock, so that the segment is freed after the lock is released.
  std::shared_ptr<const StagingSegment> dropped;
  MutexLock lock(mu_);
  const auto owner = processes_.find(process);
  if (owner == processes_.end()) return false;
  const auto found = owner->second.segments.find(id);
  if (found == owner->second.segments.end()) return false;
  dropped = std::move(found->second);
  owner->second.segments.erase(found);
  owner->second.bytes -= ByteCount(dropped->bytes().size());
  if (owner->second.segments.empty()) processes_.erase(owner);
  return true;
}

void StagingTable::DropProcess(ProcessId process) {
  Process dropped;  // declared before the lock, so it is freed after the lock is released
  MutexLock lock(mu_);
  const auto owner = processes_.find(process);
  if (owner == processes_.end()) return;
  dropped = std::move(owner->second);
  processes_.erase(owner);
}

StagingTable::Counts StagingTable::counts() const {
  MutexLock lock(mu_);
  Counts counts{.processes = processes_.size(), .segments = 0, .bytes = ledger_->total()};
  for (const auto& [id, process] : processes_) counts.segments += process.segments.size();
  return counts;
}

}  // namespace larder
