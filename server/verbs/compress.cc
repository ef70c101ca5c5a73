#include "server/verbs/compress.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "storage/clock.h"
#include "storage/codec/host_codecs.h"
#include "storage/mutex.h"
#include "storage/status_macros.h"
#include "storage/thread_priority.h"

namespace larder {
namespace {

constexpr Duration kPollEvery = std::chrono::milliseconds(10);

using Outcome = BlockRecoder::Outcome;

BlockStatus StatusOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kReady:  // a dry run
    case Outcome::kChanged:
    case Outcome::kUnchanged:
      return BlockStatus::kOk;
    case Outcome::kInUse:
      return BlockStatus::kKept;
    case Outcome::kNoRoom:
      return BlockStatus::kFull;
    case Outcome::kUnsupported:
      return BlockStatus::kUnsupported;
    case Outcome::kMissing:
    case Outcome::kFailed:
      break;
  }
  return BlockStatus::kMissing;
}

}  // namespace

struct CompressVerb::Run {
  const What& what;
  CallProgress<wire::CompressProgress> progress;
  // For SELECTION_SCOPE_BLOCKS, to answer each name that the caller gave: `answered` has these
  // names and the copies that were tried, `statuses` has the status of each of these copies, and
  // `names` has, for each selected block, the indices in answered.names at which it is named.
  SelectedBlocks answered;
  std::vector<BlockStatus> statuses;
  absl::flat_hash_map<std::pair<VariantIndex, Digest>, std::vector<uint32_t>> names;
  // Copies of blocks that were in use, to be tried again at the end; nullopt during that last try.
  std::optional<std::vector<Item>> held{std::in_place};
};

// Copies that are prepared together.  Shared with the jobs of encoders_, some of which may not
// start before all copies are prepared, and then find nothing to do.
struct CompressVerb::Window {
  Window(const BlockRecoder& the_recoder, Codec the_codec, std::span<Copy> the_copies)
      : recoder(the_recoder), to(the_codec), copies(the_copies) {}

  void Help(PayloadCodec& codec) LARDER_EXCLUDES(mu) {
    while (Copy* const copy = Take()) {
      recoder.Prepare(to, codec, copy);
      MutexLock lock(mu);
      bytes += copy->held_bytes();
      if (--busy == 0) done.NotifyAll();
    }
  }
  [[nodiscard]] Copy* Take() LARDER_EXCLUDES(mu) {
    MutexLock lock(mu);
    if (next == copies.size() || bytes >= kWindowBytes) return nullptr;
    ++busy;
    return &copies[next++];
  }
  // Waits until all copies that Take returned are prepared; returns how many they are.
  // REQUIRES: Take returned null.
  [[nodiscard]] size_t Wait() LARDER_EXCLUDES(mu) {
    MutexLock lock(mu);
    while (busy > 0) done.Wait(mu);
    return next;
  }

  const BlockRecoder& recoder;
  const Codec to;
  const std::span<Copy> copies;
  Mutex mu;
  CondVar done;
  size_t next LARDER_GUARDED_BY(mu) = 0;
  size_t busy LARDER_GUARDED_BY(mu) = 0;
  ByteCount bytes LARDER_GUARDED_BY(mu);  // which the prepared copies hold
};

CompressVerb::CompressVerb(size_t threads, BlockStore& store, DiskParts disk, Counters& counters)
    : store_(store),
      disk_(disk),
      recoder_(store, disk),
      counters_(counters),
      encoders_(threads, 4 * threads, SIZE_MAX) {}

absl::Status CompressVerb::Check(const What& what) const {
  if (std::ranges::find(HostCodecs(), what.codec) == HostCodecs().end())
    return absl::UnimplementedError("codec: this daemon supports only IDENTITY and LOSSLESS");
  if ((what.tiers & TierBit(Tier::kDisk)) == 0) return absl::OkStatus();
  return disk_.CheckReady();
}

absl::Status CompressVerb::Compress(const What& what, const Report& report) {
  SetThreadPriority(ThreadPriority::kBackground);
  LARDER_RETURN_IF_ERROR(Check(what));
  if (!report({})) return absl::CancelledError("the caller has ended the call");
  LARDER_ASSIGN_OR_RETURN(const std::vector<Item> items, ItemsOf(what));
  Run run{.what = what,
          .progress = CallProgress<wire::CompressProgress>(report),
          .answered = {},
          .statuses = {},
          .names = {}};
  run.answered.names = what.scope.blocks.names;
  for (const SelectedBlocks::Block& block : what.scope.blocks.blocks)
    run.names[{block.variant, what.scope.blocks.names[block.name]}].push_back(block.name);
  run.progress.done.blocks = items.size();
  (void)run.progress.Tell(true);
  absl::Status status = DoAll(run, items, TimePoint());
  const std::vector<Item> held =
      std::exchange(run.held, std::nullopt).value_or(std::vector<Item>());
  if (status.ok()) status = DoAll(run, held, SteadyNow() + kHoldLimit);
  if (run.progress.stopped())
    return absl::CancelledError("the caller has ended the call; blocks that are done stay done");
  if (!run.answered.names.empty())
    run.progress.done.answers = AnswersOf(run.answered, run.statuses);
  (void)run.progress.Tell(true);
  return status;
}

absl::Status CompressVerb::DoAll(Run& run, std::span<const Item> items, TimePoint until) {
  PayloadCodec codec;
  absl::Status status;
  for (std::span<const Item> left = items;
       !left.empty() && !run.progress.stopped() && status.ok();) {
    status = DoWindow(run, &left, until, codec);
    (void)run.progress.Tell(false);
  }
  return status;
}

absl::Status CompressVerb::DoWindow(Run& run, std::span<const Item>* left, TimePoint until,
                                    PayloadCodec& codec) {
  std::vector<Copy> copies;
  for (const Item& item : left->first(std::min(kWindowBlocks, left->size()))) {
    if (item.tier != left->front().tier) break;
    Copy& copy = copies.emplace_back();
    copy.variant = item.variant;
    copy.digest = item.digest;
    copy.tier = item.tier;
  }
  copies.resize(Prepare(run.what.codec, copies, codec));
  *left = left->subspan(copies.size());
  if (!run.what.dry_run) Write(run, copies, until, codec);
  recoder_.Release(copies);
  return Settle(run, copies);
}

absl::StatusOr<std::vector<CompressVerb::Item>> CompressVerb::ItemsOf(const What& what) const {
  ScopeMembers members;
  LARDER_RETURN_IF_ERROR(ScopeMembers::Find(what.scope, store_, disk_.tier, nullptr, &members));
  std::vector<Item> items;
  members.ForEach(store_, [&](const BlockIndex::View& block) {
    const TierSet there = TiersOf(block.state) & what.tiers;
    for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
      if ((there & TierBit(tier)) != 0) items.push_back({block.variant, block.digest, tier});
    }
  });
  std::ranges::stable_sort(items, {}, &Item::tier);
  return items;
}

size_t CompressVerb::Prepare(Codec to, std::span<Copy> copies, PayloadCodec& codec) {
  const auto window = std::make_shared<Window>(recoder_, to, copies);
  for (size_t i = 0; i < std::min(encoders_.threads(), copies.size() - 1); ++i) {
    encoders_.Help(ShareHolder{}, [window] {
      SetThreadPriority(ThreadPriority::kBackground);
      PayloadCodec own;
      window->Help(own);
    });
  }
  window->Help(codec);
  return window->Wait();
}

void CompressVerb::Write(Run& run, std::span<Copy> copies, TimePoint until, PayloadCodec& codec) {
  const auto held = [](const Copy& copy) { return copy.outcome == Outcome::kReady; };
  for (;;) {
    recoder_.Write(copies, codec);
    if (std::ranges::none_of(copies, held)) return;
    if (SteadyNow() >= until || !run.progress.Tell(false)) break;
    std::this_thread::sleep_for(kPollEvery);
  }
  for (Copy& copy : copies) {
    if (held(copy)) copy.outcome = Outcome::kInUse;
  }
}

// Handles the outcomes of a window.  Returns Unavailable if the disk failed, which ends the call.
absl::Status CompressVerb::Settle(Run& run, std::span<const Copy> copies) {
  wire::CompressProgress& progress = run.progress.done;
  absl::Status status;
  for (const Copy& copy : copies) {
    const bool changed = copy.outcome == Outcome::kChanged || copy.outcome == Outcome::kReady;
    if (copy.outcome == Outcome::kFailed) {
      status = absl::UnavailableError(
          "the disk fails; blocks that are done stay done, call again later for the rest");
      continue;
    }
    if (copy.outcome == Outcome::kInUse && run.held) {
      run.held->push_back({copy.variant, copy.digest, copy.tier});
      continue;
    }
    ++progress.blocks_done;
    progress.changed += changed ? 1 : 0;
    progress.unchanged += copy.outcome == Outcome::kUnchanged ? 1 : 0;
    progress.missing += copy.outcome == Outcome::kMissing ? 1 : 0;
    progress.kept_in_use += copy.outcome == Outcome::kInUse ? 1 : 0;
    progress.no_room += copy.outcome == Outcome::kNoRoom ? 1 : 0;
    progress.unsupported += copy.outcome == Outcome::kUnsupported ? 1 : 0;
    if (changed || copy.outcome == Outcome::kUnchanged) {
      progress.bytes_before += BytesOfPages(copy.pages_before);
      progress.bytes_after += BytesOfPages(copy.pages_after);
    }
    if (copy.outcome == Outcome::kChanged) Count(run.what.codec, copy);
    const auto names = run.names.find({copy.variant, copy.digest});
    if (names == run.names.end()) continue;
    for (const uint32_t name : names->second) {
      run.answered.blocks.push_back({copy.variant, name});
      run.statuses.push_back(StatusOf(copy.outcome));
    }
  }
  return status;
}

void CompressVerb::Count(Codec to, const Copy& copy) {
  const bool host = copy.tier == Tier::kHost, decoded = to == Codec::kIdentity;
  Counter& blocks = decoded
                        ? (host ? counters_.blocks_decoded_host : counters_.blocks_decoded_disk)
                        : (host ? counters_.blocks_encoded_host : counters_.blocks_encoded_disk);
  ++blocks;
  (host ? counters_.recoded_bytes_before_host : counters_.recoded_bytes_before_disk) +=
      BytesOfPages(copy.pages_before).value();
  (host ? counters_.recoded_bytes_after_host : counters_.recoded_bytes_after_disk) +=
      BytesOfPages(copy.pages_after).value();
}

}  // namespace larder
