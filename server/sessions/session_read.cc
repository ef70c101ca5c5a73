// A session's reading: acquire, release, and the acknowledgement of what was revoked.
#include <algorithm>
#include <utility>

#include "server/sessions/damage_checks.h"
#include "server/sessions/session.h"
#include "server/sessions/session_filling.h"

namespace larder {

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
  if (read_mode_ == wire::ReadMode::kStream && request.what != wire::AcquireWhat::kPromise) {
    refuse(BlockStatus::kUnsupported);
    return grant;
  }
  const SessionVariant& variant = variants_[request.variant];
  const LeaseId id{(id_.value << 32) | ++ids_};
  std::vector<EntryRef> crowded;
  BlockStore::AcquireResult held = Hold(request, TiersToHold(), &crowded);
  Promoter::Prepared promotion;
  if (!PlanPromotion(request, variant, held, id, &promotion)) {
    // Too much waits for the disk: what is there alone is as good as not there.
    held = {};
    Uncrowd(std::exchange(crowded, {}));
    held = Hold(request, HoldWhat::kHost, &crowded);
  }
  Grants(request, variant, id, held, std::move(promotion), &grant);
  if (crowded.empty()) return grant;
  if (grant.lease == LeaseId{}) {
    Uncrowd(crowded);
  } else {
    leases_.at(id).crowded = std::move(crowded);
  }
  return grant;
}

BlockStore::AcquireResult AttachedSession::Hold(const wire::Acquire& request, HoldWhat what,
                                                std::vector<EntryRef>* crowded) {
  const ByteCount budget(account_.Room(ShareKind::kLeasedBytes));
  const auto may_crowd = [&](EntryRef block) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    uint32_t& mine = crowded_[block.value];
    if (mine >= kCrowdedMax) return false;
    ++mine;
    crowded->push_back(block);
    return true;
  };
  return deps_.store.Acquire(variants_[request.variant].index, request.digests, budget, what,
                             may_crowd);
}

void AttachedSession::Uncrowd(std::span<const EntryRef> blocks) {
  for (const EntryRef block : blocks) {
    const auto mine = crowded_.find(block.value);
    if (--mine->second == 0) crowded_.erase(mine);
  }
}

void AttachedSession::Grants(const wire::Acquire& request, const SessionVariant& variant,
                             LeaseId id, BlockStore::AcquireResult& held,
                             Promoter::Prepared promotion, wire::Grant* grant) {
  LeaseRecord record;
  if (ByCopies(request)) {
    record.room = CopyRoom::Of(deps_.staging.Get(process_->id, request.staging_id),
                               request.staging_offset, request.staging_bytes);
    if (record.room == nullptr) {
      for (wire::BlockGrant& block : grant->blocks) block.status = BlockStatus::kInvalid;
      return;
    }
    record.copied = true;
  }
  bool any = false;  // there now, or waited for
  size_t tables = 0;
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    grant->blocks[i] = GrantOne(request, variant, held.blocks[i], tables < kTablesPerMessageMax);
    const BlockStatus status = grant->blocks[i].status;
    tables += grant->blocks[i].table ? 1 : 0;
    any = any || status == BlockStatus::kOk || status == BlockStatus::kPending;
    if (status == BlockStatus::kFull) grant->retry_after_ms = kRetryAfterFullMs;
  }
  if (grant->retry_after_ms > 0) account_.CountRefused(ShareKind::kLeasedBytes);
  if (!any) return;  // what was held but cannot be given goes back with `held`
  const bool charged = ChargeLease(held.lease.held_bytes(), &record);
  // A session without a page reads nothing in place, so it has nothing to check.
  std::optional<uint32_t> word = 0;
  if (page_ && charged) word = TakeWord(id.value);
  if (!charged || !word) {
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
  record.deadline = deps_.clock.Now() + std::chrono::milliseconds(request.deadline_ms);
  record.word = *word;
  record.request = request.id;
  if (promotion) promotions_.push_back(promotion);
  record.promotion = std::move(promotion);
  record.promise = request.what == wire::AcquireWhat::kPromise;
  if (record.copied) {
    PlanCopies(request, variant, held, id, record, grant);
  } else {
    PlanDecoding(request, variant, held, id, &record, grant);
  }
  record.lease = std::move(held.lease);
  next_deadline_ = std::min(next_deadline_, record.deadline);
  leases_.emplace(id, std::move(record));
}

bool AttachedSession::ChargeLease(ByteCount bytes, LeaseRecord* record) const {
  record->place = account_.Take(ShareKind::kLeases).ticket;
  if (!record->place) return false;
  record->bytes = account_.Take(ShareKind::kLeasedBytes, bytes).ticket;
  return static_cast<bool>(record->bytes);
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
    grant.status = held.repeated ? BlockStatus::kFull : BlockStatus::kPending;
    return grant;
  }
  if (held.metadata == nullptr) return grant;
  if (held.metadata->encoded() && !(encoded && Accepts(request, *held.metadata))) {
    grant.status = !tiers_         ? BlockStatus::kUnsupported
                   : held.repeated ? BlockStatus::kFull
                                   : BlockStatus::kPending;
    return grant;
  }
  const bool whole =
      request.first_layer == 0 && (request.layers == 0 || request.layers == variant.layers);
  // A block that is named again in the same request is checked once at most; one that is read by
  // copies, as it is copied.
  const bool sampled = !ByCopies(request) && !held.repeated && sampler_.Next();
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
    grant.table = held.metadata->Table(range);
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
    Uncrowd(it->second.crowded);
    leases_.erase(it);
  }
}

// A reader's word alone drops nothing: the daemon looks at the bytes itself.
void AttachedSession::Handle(const wire::DamageReport& report) {
  if (report.variant >= variants_.size()) return;
  deps_.damage_checks.Report(account_.holder(), variants_[report.variant].index, report.digests);
}

void AttachedSession::Handle(const wire::RevokeAck& ack) {
  for (const LeaseId id : ack.leases) {
    // A promise is gone since its deadline.
    if (leases_.contains(id)) Release({&id, 1});
  }
  for (const ReservationId id : ack.reservations) CloseReservation(id);
}

}  // namespace larder
