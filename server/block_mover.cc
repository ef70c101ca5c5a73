#include "server/block_mover.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {
namespace {

// How often what is under way is looked at, and reported.
constexpr Duration kLook = std::chrono::milliseconds(10);
constexpr Duration kBetweenReports = std::chrono::milliseconds(200);
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

struct BlockMover::Run {
  const What& what;
  const Report& report;
  wire::MoveProgress progress;
  TimePoint reported{};
  bool stopped = false;

  // False: stop.
  bool Tell(bool now) {
    const TimePoint time = std::chrono::steady_clock::now();
    if (stopped || (!now && time - reported < kBetweenReports)) return !stopped;
    reported = time;
    stopped = !report(progress);
    return !stopped;
  }
};

absl::Status BlockMover::Move(const What& what, const Report& report) {
  if (disk_.work == nullptr)
    return absl::FailedPreconditionError("this daemon has no disk; start it with --disk");
  if (disk_.work->recovering()) {
    return absl::UnavailableError(
        "this daemon has just started and still finds out what is on its disk; try again");
  }
  const absl::StatusOr<std::vector<Item>> items = ItemsOf(what);
  if (!items.ok()) return items.status();
  Run run{.what = what, .report = report, .progress = {}};
  for (const Item& item : *items) run.progress.bytes += BytesOf(item.pages);
  run.progress.blocks = items->size();
  if (absl::Status status = CheckFits(what, run.progress.bytes); !status.ok()) return status;
  (void)run.Tell(true);
  for (size_t at = 0; at < items->size() && !run.stopped;) {
    size_t end = at;
    ByteCount bytes;
    while (end < items->size() && end - at < kWindowBlocks &&
           (end == at || bytes + BytesOf((*items)[end].pages) <= kWindowBytes) &&
           (*items)[end].variant == (*items)[at].variant) {
      bytes += BytesOf((*items)[end++].pages);
    }
    if (absl::Status status = MoveWindow(run, std::span(*items).subspan(at, end - at));
        !status.ok()) {
      return status;
    }
    at = end;
  }
  if (!run.stopped) (void)run.Tell(true);
  return run.stopped ? absl::CancelledError("stopped; what was moved stays so") : absl::OkStatus();
}

absl::StatusOr<std::vector<BlockMover::Item>> BlockMover::ItemsOf(const What& what) const {
  ScopeMembers members;
  if (absl::Status status = ScopeMembers::Find(what.scope, store_, disk_.tier, &members);
      !status.ok()) {
    return status;
  }
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

// Else the last would push out the first, and of what is moved there is no other copy.
absl::Status BlockMover::CheckFits(const What& what, ByteCount bytes) const {
  const ByteCount most =
      what.to == Tier::kHost ? store_.pool().total_bytes() : disk_.tier->stats().limit;
  if (bytes <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("these are ", bytes.value(), " bytes, and ",
                   what.to == Tier::kHost ? "the pool" : "the disk tier", " has ", most.value(),
                   "; select fewer blocks"));
}

absl::Status BlockMover::MoveWindow(Run& run, std::span<const Item> window) {
  const std::vector<BlockStatus> answers =
      run.what.to == Tier::kDisk ? ToDisk(run, window) : ToHost(run, window);
  for (size_t i = 0; i < window.size(); ++i) Settle(run, window[i], answers[i]);
  // What left its tier for the disk's may be needed by whoever waits for room there.
  disk_.work->spiller().Nudge();
  (void)run.Tell(false);
  return absl::OkStatus();
}

void BlockMover::Settle(Run& run, const Item& item, BlockStatus status) {
  wire::MoveProgress& progress = run.progress;
  if (status == BlockStatus::kPending) return;
  ++progress.blocks_done;
  progress.bytes_done += BytesOf(item.pages);
  if (status == BlockStatus::kOk && !run.what.copy) {
    const ClearedBlock left =
        store_.Clear(item.variant, item.digest, TierBit(run.what.from), /*dry_run=*/false);
    // It lies in both: the pin, or the lease, is of the one that it was to leave.
    if (left.status == ClearedBlock::Status::kPinned) ++progress.kept_pinned;
    if (left.status == ClearedBlock::Status::kInUse) ++progress.kept_in_use;
  }
  switch (status) {
    case BlockStatus::kOk:
      ++progress.moved;
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

// The spiller does not say what became of each, so it is looked for: on disk, waiting, or neither.
std::vector<BlockStatus> BlockMover::ToDisk(Run& run, std::span<const Item> window) {
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
  while (look(spiller.Waiting(names)) > 0) {
    if (!run.Tell(false)) break;
    std::this_thread::sleep_for(kLook);
  }
  return answers;
}

std::vector<BlockStatus> BlockMover::ToHost(Run& run, std::span<const Item> window) {
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
    if (!run.Tell(false)) break;
    std::this_thread::sleep_for(kAskAgain);
  }
  while (!answers->AllIn(std::chrono::steady_clock::now() + kLook) && run.Tell(false)) continue;
  MutexLock lock(answers->mu);
  return answers->of;
}

}  // namespace larder
