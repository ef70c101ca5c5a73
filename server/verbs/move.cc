#include "server/verbs/move.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// How often a call checks whether the blocks of its window have arrived, and may report its
// progress.
constexpr Duration kReportEvery = std::chrono::milliseconds(100);
// The pause before blocks that were in use are tried again.
constexpr Duration kTryAgain = std::chrono::milliseconds(10);
// A move to disk fails if none of the blocks under way gets an answer for this long.
constexpr Duration kStalled = std::chrono::seconds(30);
// The pause before a promotion that was refused is requested again.
constexpr Duration kAskAgain = std::chrono::milliseconds(20);

// The answers for blocks that are moved together.  Shared with the spiller or the promoter, which
// may answer after the call has ended.
class Answers {
 public:
  explicit Answers(size_t blocks) : open_(blocks), of_(blocks, BlockStatus::kPending) {}

  void Set(size_t block, BlockStatus status) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    of_[block] = status;
    if (--open_ == 0) changed_.NotifyAll();
  }
  // Waits for all answers until `until`.  Returns how many blocks have none yet.
  [[nodiscard]] size_t Wait(TimePoint until) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    while (open_ > 0 && changed_.WaitUntil(mu_, until)) continue;
    return open_;
  }
  // Returns kPending for blocks without an answer.
  [[nodiscard]] std::vector<BlockStatus> Take() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return of_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t open_ LARDER_GUARDED_BY(mu_);
  std::vector<BlockStatus> of_ LARDER_GUARDED_BY(mu_);
};

}  // namespace

struct MoveVerb::Run {
  const What& what;
  CallProgress<wire::MoveProgress> progress;
  std::vector<Item> moved;  // blocks that have arrived in `to`
};

absl::Status MoveVerb::Move(const What& what, const Report& report) {
  LARDER_RETURN_IF_ERROR(disk_.CheckReady());
  if (!report({})) return absl::CancelledError("the caller has ended the call");
  LARDER_ASSIGN_OR_RETURN(const std::vector<Item> items, ItemsOf(what));
  Run run{.what = what, .progress = CallProgress<wire::MoveProgress>(report), .moved = {}};
  for (const Item& item : items) run.progress.done.bytes += BytesOfPages(item.pages);
  run.progress.done.blocks = items.size();
  absl::Status status = CheckFits(what, run.progress.done.bytes);
  LARDER_RETURN_IF_ERROR(status);
  (void)run.progress.Tell(true);
  for (std::span<const Item> left = items;
       !left.empty() && !run.progress.stopped() && status.ok();) {
    const std::span<const Item> window = left.first(WindowOf(left));
    status = MoveWindow(run, window);
    left = left.subspan(window.size());
  }
  if (!what.copy) LeaveFrom(run);
  (void)run.progress.Tell(true);
  if (run.progress.stopped())
    return absl::CancelledError("the caller has ended the call; blocks that are moved stay moved");
  return status;
}

size_t MoveVerb::WindowOf(std::span<const Item> items) {
  size_t count = 0;
  ByteCount bytes;
  for (const Item& item : items) {
    bytes += BytesOfPages(item.pages);
    if (count == kWindowBlocks || (count > 0 && bytes > kWindowBytes) ||
        item.variant != items.front().variant) {
      break;
    }
    ++count;
  }
  return count;
}

absl::StatusOr<std::vector<MoveVerb::Item>> MoveVerb::ItemsOf(const What& what) const {
  ScopeMembers members;
  LARDER_RETURN_IF_ERROR(ScopeMembers::Find(what.scope, store_, disk_.tier, nullptr, &members));
  std::vector<Item> items;
  members.ForEach(store_, [&](const BlockIndex::View& block) {
    const TierSet there = TiersOf(block.state);
    const bool in_both = (there & TierBit(what.from)) != 0 && (there & TierBit(what.to)) != 0;
    if ((there & TierBit(what.from)) == 0 || (in_both && what.copy)) return;
    items.push_back({block.variant, block.digest, block.extent.pages});
  });
  std::ranges::stable_sort(items, {}, &Item::variant);
  return items;
}

// Returns FailedPrecondition if the blocks do not fit into `to`: the last ones would evict the
// first.
absl::Status MoveVerb::CheckFits(const What& what, ByteCount bytes) const {
  const BlockStore::Stats stats = store_.stats();
  const bool to_host = what.to == Tier::kHost;
  const ByteCount all = to_host ? stats.pool_limit : disk_.tier->stats().room;
  const ByteCount kept =
      to_host ? stats.pinned_host + stats.pool_leased + stats.pool_reserved : stats.pinned_disk;
  const ByteCount most = kept < all ? all - kept : ByteCount(0);
  if (bytes <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the blocks take ", bytes.value(), " bytes, but ", to_host ? "the pool" : "the disk",
      " can hold only ", most.value(), " beside what is pinned or in use; select fewer blocks"));
}

// If a block is reported as missing or damaged, but is still in `from`, this counts as a failure of
// the disk, which ends the call.
absl::Status MoveVerb::MoveWindow(Run& run, std::span<const Item> window) {
  absl::Status status;
  const std::vector<BlockStatus> answers =
      run.what.to == Tier::kDisk ? ToDisk(run, window, &status) : ToHost(run, window);
  for (size_t i = 0; i < window.size(); ++i) {
    const bool lost = answers[i] == BlockStatus::kMissing || answers[i] == BlockStatus::kDamaged;
    if (lost && IsIn(window[i], run.what.from)) {
      status = absl::UnavailableError(
          "the disk fails; blocks that are moved stay moved, call again later for the rest");
    } else {
      Settle(run, window[i], answers[i]);
    }
  }
  (void)run.progress.Tell(true);
  return status;
}

bool MoveVerb::IsIn(const Item& item, Tier tier) const {
  BlockIndex::Presence now;
  store_.index().Lookup(item.variant, {&item.digest, 1}, {&now, 1});
  return (now.tiers & TierBit(tier)) != 0;
}

void MoveVerb::Settle(Run& run, const Item& item, BlockStatus status) {
  wire::MoveProgress& progress = run.progress.done;
  if (status == BlockStatus::kPending || status == BlockStatus::kCancelled) return;
  ++progress.blocks_done;
  progress.bytes_done += BytesOfPages(item.pages);
  switch (status) {
    case BlockStatus::kOk:
      ++progress.moved;
      run.moved.push_back(item);
      ++(run.what.to == Tier::kDisk ? counters_.blocks_moved_disk : counters_.blocks_moved_host);
      return;
    case BlockStatus::kFull:
      ++progress.no_room;
      return;
    default:
      ++progress.missing;
      return;
  }
}

// Called at the end of the call.  Until then moved blocks stay in both tiers, so that later blocks
// evict at most one copy of them.
void MoveVerb::LeaveFrom(Run& run) {
  wire::MoveProgress& progress = run.progress.done;
  const TimePoint until = SteadyNow() + kHoldLimit;
  for (std::vector<Item> left = std::exchange(run.moved, {}), in_use; !left.empty();
       left = std::exchange(in_use, {})) {
    const bool last = SteadyNow() >= until;
    for (const Item& item : left) {
      const ClearedBlock gone =
          store_.Clear(item.variant, item.digest, TierBit(run.what.from), ClearHow::kKeepLastCopy);
      using Status = ClearedBlock::Status;
      if (gone.status == Status::kPinned) ++progress.kept_pinned;
      if (gone.status == Status::kInUse && last) ++progress.kept_in_use;
      if (gone.status == Status::kInUse && !last) in_use.push_back(item);
      if (gone.status == Status::kMissing && !IsIn(item, run.what.to)) {
        --progress.moved;
        ++(IsIn(item, run.what.from) ? progress.no_room : progress.missing);
      }
    }
    if (!in_use.empty()) std::this_thread::sleep_for(kTryAgain);
  }
  disk_.work->spiller().Nudge();  // extents on disk may be free now
}

std::vector<BlockStatus> MoveVerb::ToDisk(Run& run, std::span<const Item> window,
                                          absl::Status* status) {
  const auto answers = std::make_shared<Answers>(window.size());
  for (size_t i = 0; i < window.size(); ++i) {
    const BlockStatus now = OnDisk(window[i]);
    if (now != BlockStatus::kPending) {
      answers->Set(i, now);
      continue;
    }
    disk_.work->spiller().Offer(window[i].variant, window[i].digest, [answers, i](bool on_disk) {
      answers->Set(i, on_disk ? BlockStatus::kOk : BlockStatus::kFull);
    });
  }
  // A block without an answer, or that the spiller gave up, may have arrived by another offer, or
  // have left all tiers.
  const auto look = [&](std::vector<BlockStatus>& statuses) {
    size_t open = 0;
    for (size_t i = 0; i < window.size(); ++i) {
      if (statuses[i] == BlockStatus::kPending || statuses[i] == BlockStatus::kFull) {
        const BlockStatus now = OnDisk(window[i]);
        if (now != BlockStatus::kPending) statuses[i] = now;
      }
      open += statuses[i] == BlockStatus::kPending ? 1 : 0;
    }
    return open;
  };
  std::vector<BlockStatus> statuses;
  size_t open = window.size();
  TimePoint changed = SteadyNow();
  for (;;) {
    (void)answers->Wait(SteadyNow() + kReportEvery);
    statuses = answers->Take();
    const size_t now_open = look(statuses);
    if (now_open == 0 || !run.progress.Tell(false)) break;
    const TimePoint now = SteadyNow();
    if (now_open < open) changed = now;
    open = now_open;
    if (now - changed <= kStalled) continue;
    *status = absl::UnavailableError(
        "the disk has written nothing for too long; blocks that are moved stay moved, call again "
        "later for the rest");
    break;
  }
  return statuses;
}

BlockStatus MoveVerb::OnDisk(const Item& item) const {
  BlockIndex::Presence now;
  store_.index().Lookup(item.variant, {&item.digest, 1}, {&now, 1});
  if ((now.tiers & TierBit(Tier::kDisk)) != 0) return BlockStatus::kOk;
  return now.tiers == 0 ? BlockStatus::kMissing : BlockStatus::kPending;
}

std::vector<BlockStatus> MoveVerb::ToHost(Run& run, std::span<const Item> window) {
  const auto answers = std::make_shared<Answers>(window.size());
  std::vector<Digest> digests;
  for (const Item& item : window) digests.push_back(item.digest);
  const auto ready = [answers](size_t i, BlockStatus status) { answers->Set(i, status); };
  while (!disk_.work->Promote(window.front().variant, digests, ready)) {
    if (!run.progress.Tell(false)) break;
    std::this_thread::sleep_for(kAskAgain);
  }
  while (answers->Wait(SteadyNow() + kReportEvery) > 0 && run.progress.Tell(false)) continue;
  return answers->Take();
}

}  // namespace larder
