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

// How often what is under way is looked at, and reported.
constexpr Duration kPollEvery = std::chrono::milliseconds(10);
// When nothing has changed for so long, seldom.
constexpr Duration kBusy = std::chrono::milliseconds(200),
                   kPollSeldom = std::chrono::milliseconds(100);
// A disk that takes nothing for so long fails.
constexpr Duration kStalled = std::chrono::seconds(30);
// The house's own holds, of who spills, promotes or verifies, end by then.
constexpr Duration kHoldLimit = std::chrono::seconds(1);
// A promotion that found too much waiting is asked for again so much later.
constexpr Duration kAskAgain = std::chrono::milliseconds(20);

ByteCount BytesOf(uint32_t pages) { return ByteCount(uint64_t{pages} * kPageBytes); }

// Answers of a window's promotions.  Shared with them, for they may come after the call has ended.
struct Answers {
  Mutex mu;
  CondVar changed;
  std::vector<BlockStatus> of LARDER_GUARDED_BY(mu);
  size_t open LARDER_GUARDED_BY(mu) = 0;

  // Waits for them; false: not by then.
  [[nodiscard]] bool AllIn(TimePoint until) LARDER_EXCLUDES(mu) {
    MutexLock lock(mu);
    if (open > 0) changed.WaitUntil(mu, until);
    return open == 0;
  }
};

}  // namespace

struct MoveVerb::Run {
  const What& what;
  CallProgress<wire::MoveProgress> progress;
  std::vector<Item> moved;  // they are in `to`
};

absl::Status MoveVerb::Move(const What& what, const Report& report) {
  LARDER_RETURN_IF_ERROR(disk_.CheckReady());
  if (!report({})) return absl::CancelledError("the caller has gone");
  LARDER_ASSIGN_OR_RETURN(const std::vector<Item> items, ItemsOf(what));
  Run run{.what = what, .progress = CallProgress<wire::MoveProgress>(report), .moved = {}};
  for (const Item& item : items) run.progress.done.bytes += BytesOf(item.pages);
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
  if (run.progress.stopped()) return absl::CancelledError("stopped; what was moved stays so");
  return status;
}

size_t MoveVerb::WindowOf(std::span<const Item> items) {
  size_t count = 0;
  ByteCount bytes;
  for (const Item& item : items) {
    bytes += BytesOf(item.pages);
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
  store_.index().ForEach([&](const BlockIndex::View& block) {
    const TierSet there = TiersOf(block.state);
    const bool in_both = (there & TierBit(what.from)) != 0 && (there & TierBit(what.to)) != 0;
    if ((there & TierBit(what.from)) == 0 || (in_both && what.copy)) return;
    if (members.Contains(block.variant, block.digest))
      items.push_back({block.variant, block.digest, block.extent.pages});
  });
  std::ranges::stable_sort(items, {}, &Item::variant);
  return items;
}

// Else the last would push out the first.
absl::Status MoveVerb::CheckFits(const What& what, ByteCount bytes) const {
  const BlockStore::Stats stats = store_.stats();
  const bool to_host = what.to == Tier::kHost;
  const ByteCount all = to_host ? stats.pool_limit : disk_.tier->stats().room;
  const ByteCount kept =
      to_host ? stats.pinned_host + stats.pool_leased + stats.pool_reserved : stats.pinned_disk;
  const ByteCount most = kept < all ? all - kept : ByteCount(0);
  if (bytes <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("these are ", bytes.value(), " bytes, and ", to_host ? "the pool" : "the disk",
                   " has room for ", most.value(),
                   " beside what is pinned or in use; select fewer "
                   "blocks"));
}

// Of those that did not come and are where they were, the disk's fault, which is the call's.
absl::Status MoveVerb::MoveWindow(Run& run, std::span<const Item> window) {
  absl::Status status;
  const std::vector<BlockStatus> answers =
      run.what.to == Tier::kDisk ? ToDisk(run, window, &status) : ToHost(run, window);
  for (size_t i = 0; i < window.size(); ++i) {
    const bool lost = answers[i] == BlockStatus::kMissing || answers[i] == BlockStatus::kDamaged;
    if (lost && IsIn(window[i], run.what.from)) {
      status = absl::UnavailableError("the disk fails; what was moved stays so, call again later");
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
  progress.bytes_done += BytesOf(item.pages);
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

// At the end: until then what is moved lies in both tiers, so what comes later pushes out at most a
// copy of it.  What has left `to` meanwhile stays.
void MoveVerb::LeaveFrom(Run& run) {
  wire::MoveProgress& progress = run.progress.done;
  const TimePoint until = std::chrono::steady_clock::now() + kHoldLimit;
  for (std::vector<Item> left = std::exchange(run.moved, {}), in_use; !left.empty();
       left = std::exchange(in_use, {})) {
    const bool last = std::chrono::steady_clock::now() >= until;
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
    if (!in_use.empty()) std::this_thread::sleep_for(kPollEvery);
  }
  disk_.work->spiller().Nudge();  // rooms on disk may be free
}

// The spiller does not say what became of each, so it is looked for: on disk, waiting, or neither.
std::vector<BlockStatus> MoveVerb::ToDisk(Run& run, std::span<const Item> window,
                                          absl::Status* status) {
  Spiller& spiller = disk_.work->spiller();
  std::vector<BlockStatus> answers(window.size(), BlockStatus::kPending);
  const auto look = [&](const std::vector<bool>& waits) {
    size_t open = 0;
    for (size_t i = 0; i < window.size(); ++i) {
      if (answers[i] != BlockStatus::kPending) continue;
      BlockIndex::Presence now;
      store_.index().Lookup(window[i].variant, {&window[i].digest, 1}, {&now, 1});
      if ((now.tiers & TierBit(Tier::kDisk)) != 0) {
        answers[i] = BlockStatus::kOk;
      } else if (now.tiers == 0) {
        answers[i] = BlockStatus::kMissing;
      } else if (!waits[i]) {
        answers[i] = BlockStatus::kFull;
      }
      open += answers[i] == BlockStatus::kPending ? 1 : 0;
    }
    return open;
  };
  std::vector<std::pair<VariantIndex, Digest>> names;
  for (const Item& item : window) names.emplace_back(item.variant, item.digest);
  if (look(std::vector<bool>(window.size(), true)) == 0) return answers;
  for (size_t i = 0; i < window.size(); ++i) {
    if (answers[i] == BlockStatus::kPending)
      spiller.Offer(SessionId{}, window[i].variant, window[i].digest);
  }
  // First whether they wait, then where they are: they are there before they wait no more.
  size_t open = window.size();
  TimePoint changed = std::chrono::steady_clock::now();
  for (;;) {
    const size_t now_open = look(spiller.Waiting(names));
    if (now_open == 0 || !run.progress.Tell(false)) break;
    const TimePoint now = std::chrono::steady_clock::now();
    if (now_open < open) changed = now;
    open = now_open;
    if (now - changed > kStalled) {
      *status = absl::UnavailableError("the disk takes nothing; what was moved stays so");
      break;
    }
    std::this_thread::sleep_for(now - changed < kBusy ? kPollEvery : kPollSeldom);
  }
  return answers;
}

std::vector<BlockStatus> MoveVerb::ToHost(Run& run, std::span<const Item> window) {
  const auto answers = std::make_shared<Answers>();
  std::vector<Digest> digests;
  for (const Item& item : window) digests.push_back(item.digest);
  {
    MutexLock lock(answers->mu);
    answers->of.assign(window.size(), BlockStatus::kPending);
    answers->open = window.size();
  }
  const auto ready = [answers](size_t i, BlockStatus status) {
    MutexLock lock(answers->mu);
    answers->of[i] = status;
    if (--answers->open == 0) answers->changed.NotifyAll();
  };
  while (!disk_.work->Promote(window.front().variant, digests, ready)) {
    if (!run.progress.Tell(false)) break;
    std::this_thread::sleep_for(kAskAgain);
  }
  while (!answers->AllIn(std::chrono::steady_clock::now() + kPollEvery) && run.progress.Tell(false))
    continue;
  MutexLock lock(answers->mu);
  return answers->of;
}

}  // namespace larder
