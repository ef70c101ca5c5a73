#include "server/verbs/verify.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// The longest sleep while the call waits to keep its rate; after each sleep the call may report,
// and so notice that its caller wants it to stop.
constexpr Duration kNap = std::chrono::milliseconds(50);

bool IsIn(BlockState state, Tier tier) { return (TiersOf(state) & TierBit(tier)) != 0; }

}  // namespace

struct VerifyVerb::Run {
  const wire::VerifyQuery& query;
  CallProgress<wire::VerifyProgress> progress;
  TimePoint due{};   // when the rate allows the next block
  int failures = 0;  // in a row

  [[nodiscard]] bool over() const { return progress.stopped() || failures >= kFailuresMax; }
  void KeepRate(ByteCount bytes) {
    if (query.bytes_per_s == 0) return;
    const std::chrono::duration<double> takes(static_cast<double>(bytes.value()) /
                                              static_cast<double>(query.bytes_per_s));
    due = std::max(due, SteadyNow()) + std::chrono::duration_cast<Duration>(
                                           std::min(takes, std::chrono::duration<double>(3600)));
    while (!progress.stopped() && SteadyNow() < due) {
      std::this_thread::sleep_until(std::min(due, SteadyNow() + kNap));
      (void)progress.Tell(false);
    }
  }
};

absl::Status VerifyVerb::Verify(const wire::VerifyQuery& query, const Report& report) {
  LARDER_RETURN_IF_ERROR(CheckTier(query.tier));
  Run run{.query = query, .progress = CallProgress<wire::VerifyProgress>(report)};
  Count(query.tier, &run.progress.done);
  (void)run.progress.Tell(true);
  store_.index().ForEach([&](const BlockIndex::View& block) {
    if (!run.over() && IsIn(block.state, query.tier)) VerifyOne(run, block);
  });
  (void)run.progress.Tell(true);
  if (run.progress.stopped())
    return absl::CancelledError(
        "the caller has ended the call; damaged blocks found so far are dropped");
  if (run.over())
    return absl::UnavailableError("the disk fails; damaged blocks found so far are dropped");
  return absl::OkStatus();
}

absl::Status VerifyVerb::CheckTier(Tier tier) const {
  if (tier == Tier::kHost) return absl::OkStatus();
  if (tier != Tier::kDisk)
    return absl::UnimplementedError("tier: only TIER_HOST and TIER_DISK can be verified");
  return disk_.CheckReady();
}

void VerifyVerb::Count(Tier tier, wire::VerifyProgress* progress) const {
  store_.index().ForEach([&](const BlockIndex::View& block) {
    if (!IsIn(block.state, tier)) return;
    ++progress->blocks;
    progress->bytes += BytesOfPages(block.extent.pages);
  });
}

// The view may be out of date by now, so the block is looked up again.
void VerifyVerb::VerifyOne(Run& run, const BlockIndex::View& block) {
  wire::VerifyProgress& progress = run.progress.done;
  const Tier tier = run.query.tier;
  const BlockIndex::Held held = store_.HoldUntouched(block.variant, block.digest);
  auto status = DiskTier::GetStatus::kMissing;
  if (held.ref.value != 0) {
    if (IsIn(held.state, tier))
      status = tier == Tier::kHost ? CheckInHost(held) : CheckOnDisk(held, block);
    if (status == DiskTier::GetStatus::kDamaged) store_.DropDamaged(held.ref, tier);
    store_.Unhold({&held.ref, 1});
  }
  using Status = DiskTier::GetStatus;
  ++(status == Status::kOk        ? progress.whole
     : status == Status::kDamaged ? progress.damaged
     : status == Status::kMissing ? progress.missing
                                  : progress.unread);
  run.failures = status == Status::kFailed ? run.failures + 1 : 0;
  // Blocks that were stored since Count ran may be read too.
  progress.blocks = std::max(progress.blocks, ++progress.blocks_done);
  progress.bytes_done += BytesOfPages(block.extent.pages);
  progress.bytes = std::max(progress.bytes, progress.bytes_done);
  (void)run.progress.Tell(false);
  run.KeepRate(BytesOfPages(block.extent.pages));
}

DiskTier::GetStatus VerifyVerb::CheckInHost(const BlockIndex::Held& held) {
  if (held.metadata == nullptr) return DiskTier::GetStatus::kMissing;
  ++counters_.host_checks;
  const SegmentRange all{0, held.metadata->segment_count(), 0,
                         held.metadata->payload_bytes().value()};
  return store_.Check(held, all) ? DiskTier::GetStatus::kOk : DiskTier::GetStatus::kDamaged;
}

// A block that has left the disk meanwhile, or whose record is being or has been rewritten, is not
// damaged.
DiskTier::GetStatus VerifyVerb::CheckOnDisk(const BlockIndex::Held& held,
                                            const BlockIndex::View& block) {
  ByteCount bytes;
  const DiskTier::GetStatus status =
      DiskVerifier::Check(*disk_.tier,
                          {.key = {store_.index().VariantId(block.variant), block.digest},
                           .location = DiskLocation{held.disk_location}},
                          &bytes);
  if (status == DiskTier::GetStatus::kOk || status == DiskTier::GetStatus::kFailed) return status;
  // IsWriting is called before LookAt, because a block has its new location before its writing
  // ends.
  const bool writing = disk_.work->spiller().IsWriting(block.variant, block.digest);
  const BlockIndex::Held now = store_.index().LookAt(held.ref);
  const bool same =
      !writing && IsIn(now.state, Tier::kDisk) && now.disk_location == held.disk_location;
  return same ? DiskTier::GetStatus::kDamaged : DiskTier::GetStatus::kMissing;
}

}  // namespace larder
