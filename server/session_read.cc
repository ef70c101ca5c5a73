// A session's reading: acquire, release, and the acknowledgement of what was revoked.
#include <algorithm>
#include <utility>

#include "server/session.h"

namespace larder {

bool AttachedSession::SampleNow() {
  if (deps_.check_one_in == 0) return false;
  if (until_sample_ > 0) {
    --until_sample_;
    return false;
  }
  until_sample_ = deps_.check_one_in - 1;
  return true;
}

wire::Grant AttachedSession::Handle(const wire::Acquire& request) {
  wire::Grant grant;
  grant.id = request.id;
  grant.blocks.resize(request.digests.size());
  const auto refuse = [&grant](BlockStatus status) {
    for (wire::BlockGrant& block : grant.blocks) block.status = status;
  };
  if (request.variant >= variants_.size()) {
    refuse(BlockStatus::kInvalid);
    return grant;
  }
  if (Drained()) {
    refuse(BlockStatus::kCancelled);
    return grant;
  }
  if (write_mode_ == wire::WriteMode::kStream && request.what != wire::AcquireWhat::kPromise) {
    refuse(BlockStatus::kUnsupported);
    return grant;
  }
  const SessionVariant& variant = variants_[request.variant];
  const ByteCount share = deps_.store.lease_budget();
  const ByteCount budget = share > leased_ ? share - leased_ : ByteCount(0);
  const LeaseId id{(id_.value << 32) | ++ids_};
  BlockStore::AcquireResult held =
      deps_.store.Acquire(variant.index, request.digests, budget, TiersToHold());
  Promoter::Prepared promotion;
  if (!PlanPromotion(request, variant, held, id, &promotion)) {
    // Too much waits for the disk: what is there alone is as good as not there.
    held = deps_.store.Acquire(variant.index, request.digests, budget, HoldWhat::kHost);
  }
  Grants(request, variant, id, held, std::move(promotion), &grant);
  return grant;
}

void AttachedSession::Grants(const wire::Acquire& request, const SessionVariant& variant,
                             LeaseId id, BlockStore::AcquireResult& held,
                             Promoter::Prepared promotion, wire::Grant* grant) {
  bool any = false;  // there now, or waited for
  size_t tables = 0;
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    grant->blocks[i] = GrantOne(request, variant, held.blocks[i], tables < kTablesPerMessageMax);
    const BlockStatus status = grant->blocks[i].status;
    tables += grant->blocks[i].table ? 1 : 0;
    any = any || status == BlockStatus::kOk || status == BlockStatus::kPending;
    if (status == BlockStatus::kFull) grant->retry_after_ms = kRetryAfterFullMs;
  }
  if (!any) return;  // what was held but cannot be given goes back with `held`
  // A session without a page reads nothing in place, so it has nothing to check.
  std::optional<uint32_t> word = 0;
  if (page_) word = TakeWord(id.value);
  if (!word) {
    for (wire::BlockGrant& block : grant->blocks) {
      block = {};
      block.status = BlockStatus::kFull;
    }
    grant->retry_after_ms = kRetryAfterFullMs;
    return;
  }
  grant->lease = id;
  grant->deadline_ms = request.deadline_ms;
  grant->word = *word;
  LeaseRecord record;
  record.deadline = deps_.clock.Now() + std::chrono::milliseconds(request.deadline_ms);
  record.word = *word;
  record.request = request.id;
  if (promotion) promotions_.push_back(promotion);
  record.promotion = std::move(promotion);
  record.charged = held.lease.held_bytes();
  PlanDecoding(request, variant, held, id, &record, grant);
  leased_ += record.charged;
  record.lease = std::move(held.lease);
  next_deadline_ = std::min(next_deadline_, record.deadline);
  leases_.emplace(id, std::move(record));
}

// Once, what the client hears; what it waits for is counted when it arrives, and a request that was
// refused as such is none for blocks.
void AttachedSession::CountGot(const wire::Acquire& request, const wire::Grant& grant) {
  uint64_t hits = 0, missing = 0, bytes = 0;
  for (const wire::BlockGrant& block : grant.blocks) {
    switch (block.status) {
      case BlockStatus::kOk:
        ++hits;
        bytes += block.extent.bytes;
        break;
      case BlockStatus::kPending:
      case BlockStatus::kCancelled:
      case BlockStatus::kUnsupported:
        break;
      default:
        ++missing;
        break;
    }
  }
  if (missing > 0) deps_.counters.blocks_missing += missing;
  if (hits == 0) return;
  deps_.counters.blocks_hit += hits;
  deps_.counters.got_host_bytes += bytes;
  deps_.counters.got_host_tokens += hits * variants_[request.variant].block_tokens;
}

wire::BlockGrant AttachedSession::GrantOne(const wire::Acquire& request,
                                           const SessionVariant& variant,
                                           const BlockIndex::Held& held, bool encoded) {
  wire::BlockGrant grant;
  if (held.ref.value == 0) {
    grant.status = held.full ? BlockStatus::kFull : BlockStatus::kMissing;
    return grant;
  }
  grant.status = BlockStatus::kOk;
  grant.tier = OnDiskAlone(held.state) ? Tier::kDisk : Tier::kHost;
  if (request.what == wire::AcquireWhat::kPromise) return grant;
  if (OnDiskAlone(held.state)) {
    grant.status = BlockStatus::kPending;
    return grant;
  }
  if (held.metadata == nullptr) return grant;
  if (held.metadata->encoded() && !(encoded && Accepts(request, *held.metadata))) {
    grant.status = tiers_ ? BlockStatus::kPending : BlockStatus::kUnsupported;
    return grant;
  }
  const bool whole =
      request.first_layer == 0 && (request.layers == 0 || request.layers == variant.layers);
  const bool sampled = SampleNow();
  SegmentRange range{0, held.metadata->segment_count(), 0, held.metadata->payload_bytes().value()};
  if (!whole && !held.metadata->Table().Range(request.first_layer, request.layers, &range).ok()) {
    grant.status = BlockStatus::kInvalid;
    return grant;
  }
  if (request.what == wire::AcquireWhat::kView && sampled) {
    ++deps_.counters.host_checks;
    if (!deps_.store.Check(held, range)) {
      deps_.store.DropDamaged(held.ref);
      grant.status = BlockStatus::kDamaged;
      return grant;
    }
  }
  const bool checked_there =
      sampled && request.what == wire::AcquireWhat::kBytes && held.metadata->hashed();
  if (checked_there) ++deps_.counters.host_checks;
  if (request.want_tables || held.metadata->encoded() || checked_there) {
    SegmentTable table = held.metadata->Table();
    table.segments = {table.segments.begin() + range.first,
                      table.segments.begin() + range.first + range.count};
    grant.table = std::move(table);
  }
  grant.extent.slab = static_cast<uint32_t>(held.extent.slab);
  grant.extent.offset = held.extent.offset() + range.begin;
  grant.extent.bytes = range.end - range.begin;
  return grant;
}

void AttachedSession::Release(std::span<const LeaseId> leases) {
  for (const LeaseId id : leases) {
    if (!id) continue;
    const auto it = leases_.find(id);
    if (it == leases_.end()) {
      ++deps_.counters.unknown_releases;
      continue;
    }
    if (page_) page_->Clear(it->second.word, id.value);
    leased_ -= it->second.charged;
    leases_.erase(it);
  }
}

// A reader's word alone drops nothing: the daemon looks at the bytes itself, on a thread that
// nobody waits for, a few blocks at a time.  When those threads are busy the report is dropped: the
// block is checked again when it is next sampled.
void AttachedSession::Handle(const wire::DamageReport& report) {
  if (report.variant >= variants_.size()) return;
  const VariantIndex variant = variants_[report.variant].index;
  const size_t weight = report.digests.size() * sizeof(Digest);
  (void)deps_.workers.Submit(weight,
                             [self = shared_from_this(), variant, digests = report.digests] {
                               self->CheckReported(variant, digests);
                             });
}

void AttachedSession::CheckReported(VariantIndex variant, std::span<const Digest> digests) {
  constexpr size_t kAtOnce = 4;
  for (size_t at = 0; at < digests.size(); at += kAtOnce) {
    const BlockStore::AcquireResult held =
        deps_.store.Acquire(variant, digests.subspan(at, std::min(kAtOnce, digests.size() - at)),
                            deps_.store.lease_budget());
    for (const BlockIndex::Held& block : held.blocks) {
      if (block.ref.value == 0 || block.metadata == nullptr) continue;
      const SegmentRange all{0, block.metadata->segment_count(), 0,
                             block.metadata->payload_bytes().value()};
      if (!deps_.store.Check(block, all)) deps_.store.DropDamaged(block.ref);
    }
  }
}

void AttachedSession::Handle(const wire::RevokeAck& ack) {
  Release(ack.leases);
  for (const ReservationId id : ack.reservations) CloseReservation(id);
}

}  // namespace larder
