// What a session has to do with the disk: blocks that it acquired and that are read from there, and
// what it published and is durable now.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "server/sessions/session.h"
#include "server/sessions/session_filling.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

// What is known of an acquire when its blocks arrive.
struct AttachedSession::Promotion {
  wire::Acquire request;  // without its digests
  SessionVariant variant;
  LeaseId lease;
  TimePoint begun;
};

HoldWhat AttachedSession::TiersToHold() const {
  const bool disk = tiers_ && deps_.disk != nullptr && deps_.disk->promoter().worth_asking();
  return disk ? HoldWhat::kAnyTier : HoldWhat::kHost;
}

void AttachedSession::Offer(VariantIndex variant, const Digest& digest) {
  if (deps_.disk != nullptr) deps_.disk->spiller().Offer(id_, variant, digest);
}

// Held blocks that are on disk alone: read for their lease once its grant is on its way.
bool AttachedSession::PlanPromotion(const wire::Acquire& request, const SessionVariant& variant,
                                    const BlockStore::AcquireResult& held, LeaseId lease,
                                    Promoter::Prepared* prepared) {
  if (deps_.disk == nullptr) return true;
  Promoter::Job job;
  job.session = id_;
  job.variant = variant.index;
  job.remaining = ByteCount(request.remaining_bytes);
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const BlockIndex::Held& block = held.blocks[i];
    if (block.ref.value == 0 || block.repeated || !OnDiskAlone(block.state)) continue;
    job.blocks.push_back(
        {i, block.ref, request.digests[i], block.disk_location, block.extent.bytes()});
  }
  if (job.blocks.empty()) return true;
  auto promotion =
      std::make_shared<Promotion>(Promotion{request, variant, lease, deps_.clock.Now()});
  promotion->request.digests.clear();
  job.ready = [self = weak_from_this(), promotion = std::move(promotion)](
                  const Promoter::Wanted& wanted, BlockStatus status, const BlockIndex::Held& now) {
    if (const std::shared_ptr<AttachedSession> session = self.lock())
      session->OnPromoted(*promotion, wanted.key, status, now);
  };
  *prepared = deps_.disk->promoter().Prepare(std::move(job));
  return *prepared != nullptr;
}

void AttachedSession::StartPromotions() {
  std::vector<Promoter::Prepared> jobs;
  {
    MutexLock lock(mu_);
    jobs.swap(promotions_);
  }
  for (Promoter::Prepared& job : jobs) deps_.disk->promoter().Submit(std::move(job));
}

void AttachedSession::CancelReads(std::span<const uint64_t> requests) {
  if (requests.empty()) return;
  // One walk over the leases, however many requests a message cancels.
  const absl::flat_hash_set<uint64_t> cancelled(requests.begin(), requests.end());
  for (auto& [id, record] : leases_) {
    if (!cancelled.contains(record.request)) continue;
    record.cancelled = true;
    if (record.promotion) Promoter::Cancel(record.promotion);
  }
}

void AttachedSession::OnPromoted(const Promotion& promotion, size_t key, BlockStatus status,
                                 const BlockIndex::Held& held) {
  if (promotion.request.what == wire::AcquireWhat::kPromise) return;  // nobody waits for it
  wire::Down down;
  std::shared_ptr<Filling> copies;
  {
    MutexLock lock(mu_);
    const auto lease = leases_.find(promotion.lease);
    if (closed_ || lease == leases_.end() || lease->second.revoked) return;
    wire::BlockGrant block;
    block.status = status;
    if (status == BlockStatus::kOk)
      block = GrantOne(promotion.request, promotion.variant, held, /*encoded=*/true);
    if (lease->second.copied)
      copies = PlanPromoted(promotion, key, held, lease->second.room, &block);
    if (block.status == BlockStatus::kPending) block.status = BlockStatus::kFull;  // ask again
    block.tier = Tier::kDisk;  // where it was found
    const auto number = static_cast<uint32_t>(key);
    if (block.status == BlockStatus::kOk) {
      down.ready.push_back({promotion.request.id, number, std::move(block)});
    } else {
      down.failed.push_back({promotion.request.id, number, block.status});
    }
  }
  if (copies != nullptr) return StartCopies(std::move(copies));
  if (!down.ready.empty()) {
    ++deps_.counters.blocks_from_disk;
    deps_.counters.got_disk_bytes += down.ready[0].block.extent.bytes;
    deps_.counters.got_disk_tokens += promotion.variant.block_tokens;
    deps_.counters.latencies.disk_read.Observe(deps_.clock.Now() - promotion.begun);
  } else if (down.failed[0].status != BlockStatus::kCancelled) {
    ++deps_.counters.blocks_missing;
  }
  Send(std::move(down));
}

// Of a session that reads by copies.  Null: `block` says why it gets none.
std::shared_ptr<AttachedSession::Filling> AttachedSession::PlanPromoted(
    const Promotion& promotion, size_t key, const BlockIndex::Held& held,
    std::shared_ptr<CopyRoom> room, wire::BlockGrant* block) {
  const bool encoded = block->status == BlockStatus::kPending;
  if (block->status != BlockStatus::kOk && !encoded) return nullptr;
  if (room == nullptr) {  // it came at the deadline
    block->status = BlockStatus::kCancelled;
    return nullptr;
  }
  const std::shared_ptr<Filling> plan =
      NewFilling(promotion.request, promotion.variant, promotion.lease);
  plan->room = std::move(room);
  plan->read_from_disk = promotion.begun;
  if (AddToFilling(key, held, *block, *plan)) return plan;
  block->status = BlockStatus::kFull;
  return nullptr;
}

void AttachedSession::OnDurable(VariantIndex variant, std::span<const Digest> digests) {
  uint32_t number = 0;  // of the variant, as the client knows it
  {
    MutexLock lock(mu_);
    if (closed_ || !tiers_) return;
    const auto same = [variant](const SessionVariant& v) { return v.index == variant; };
    const auto it = std::find_if(variants_.begin(), variants_.end(), same);
    if (it == variants_.end()) return;
    number = static_cast<uint32_t>(it - variants_.begin());
  }
  while (!digests.empty()) {  // a sync may cover more small blocks than a message holds
    const auto some = digests.first(std::min<size_t>(digests.size(), wire::kKeysMax));
    digests = digests.subspan(some.size());
    wire::Down down;
    down.durable.push_back({.variant = number, .digests = {some.begin(), some.end()}});
    Send(std::move(down));
  }
}

}  // namespace larder
