// What a session does about blocks that HOST has encoded: given as they are to who accepts that,
// else decoded into an extent of the lease's own.  The block stays as it is.
#include <algorithm>
#include <cstring>
#include <utility>

#include "server/sessions/session.h"
#include "server/sessions/session_filling.h"
#include "storage/codec/payload_codec.h"
#include "storage/disk/page_buffer.h"

namespace larder {

bool AttachedSession::Accepts(const wire::Acquire& request, const BlockMetadata& metadata) {
  for (uint32_t i = 0; i < metadata.segment_count(); ++i) {
    const Codec codec = metadata.segment(i).codec;
    if (codec != Codec::kIdentity &&
        std::ranges::find(request.accepted_codecs, codec) == request.accepted_codecs.end()) {
      return false;
    }
  }
  return true;
}

void AttachedSession::PlanDecoding(const wire::Acquire& request, const SessionVariant& variant,
                                   const BlockStore::AcquireResult& held, LeaseId lease,
                                   LeaseRecord* record, wire::Grant* grant) {
  const std::shared_ptr<Filling> plan = NewFilling(request, variant, lease);
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const BlockIndex::Held& block = held.blocks[i];
    if (grant->blocks[i].status != BlockStatus::kPending || !InHost(block.state)) continue;
    const ByteCount bytes(PagesFor(block.metadata->raw_payload_bytes()) * kPageBytes);
    Shares::Answer more = account_.Take(ShareKind::kLeasedBytes, bytes);
    if (!more.admitted() || !plan->holds.Add(block.ref)) {
      grant->blocks[i] = {.status = BlockStatus::kFull, .tier = {}, .extent = {}, .table = {}};
      grant->retry_after_ms = kRetryAfterFullMs;
      continue;
    }
    record->bytes.Merge(std::move(more.ticket));
    FillingBlock& wanted = plan->blocks.emplace_back();
    wanted.key = i;
    wanted.held = block;
  }
  if (!plan->blocks.empty()) fillings_.push_back(plan);
}

std::shared_ptr<AttachedSession::Filling> AttachedSession::NewFilling(const wire::Acquire& request,
                                                                      const SessionVariant& variant,
                                                                      LeaseId lease) {
  return std::make_shared<Filling>(deps_.store, request, variant, lease);
}

void AttachedSession::StartFillings() {
  std::vector<std::shared_ptr<Filling>> plans;
  {
    MutexLock lock(mu_);
    plans.swap(fillings_);
  }
  for (const std::shared_ptr<Filling>& plan : plans) {
    if (plan->room != nullptr) {
      StartCopies(plan);
    } else if (!SubmitFilling(plan)) {
      GiveUp(*plan, BlockStatus::kFull);
    }
  }
}

bool AttachedSession::SubmitFilling(const std::shared_ptr<Filling>& plan) {
  plan->waits.Reset();
  return deps_.workers.Submit(account_.holder(), plan->bytes(), [self = shared_from_this(), plan] {
    plan->room != nullptr ? self->CopyOut(plan) : self->Decode(plan);
  });
}

// Some of them, then it is others' turn.
void AttachedSession::Decode(const std::shared_ptr<Filling>& plan) {
  constexpr ByteCount kAtOnce = MiB(16);
  PayloadCodec codec;
  ByteCount done;
  while (plan->next < plan->blocks.size()) {
    done += plan->blocks[plan->next].held.metadata->raw_payload_bytes();
    DecodeNext(*plan, codec);
    if (done >= kAtOnce && plan->next < plan->blocks.size() && SubmitFilling(plan)) return;
  }
}

void AttachedSession::GiveUp(Filling& plan, BlockStatus status) {
  plan.holds.Release();
  for (; plan.next < plan.blocks.size(); ++plan.next) {
    const FillingBlock& block = plan.blocks[plan.next];
    AnswerDecoded(plan, block.key, {.status = status, .tier = {}, .extent = {}, .table = {}}, {});
  }
}

void AttachedSession::DecodeNext(Filling& plan, PayloadCodec& codec) {
  const FillingBlock& block = plan.blocks[plan.next++];
  wire::BlockGrant grant;
  grant.status = BlockStatus::kCancelled;
  ExtentReservation extent;
  if (Wanted(plan.lease)) {
    const ByteCount bytes = block.held.metadata->raw_payload_bytes();
    BlockStore::ReserveResult room =
        deps_.store.Reserve({&bytes, 1}, deps_.store.pool().total_bytes());
    grant.status = room.status;
    extent = std::move(room.reservation);
    if (grant.status == BlockStatus::kOk) {
      const Extent& to = extent.extent(0);
      grant = Decoded(plan.request, block.held, deps_.store.Bytes(to), codec);
      grant.extent.slab = static_cast<uint32_t>(to.slab);
      grant.extent.offset += to.offset();
    }
  }
  plan.ReleaseAtEnd();
  AnswerDecoded(plan, block.key, std::move(grant), std::move(extent));
}

bool AttachedSession::Wanted(LeaseId lease) {
  MutexLock lock(mu_);
  const auto record = leases_.find(lease);
  return !closed_ && record != leases_.end() && !record->second.revoked &&
         !record->second.cancelled;
}

// From a copy of our own: who may write to the pool could change it while it is decoded.
wire::BlockGrant AttachedSession::Decoded(const wire::Acquire& request,
                                          const BlockIndex::Held& held, std::span<std::byte> to,
                                          PayloadCodec& codec) {
  wire::BlockGrant grant;
  grant.status = BlockStatus::kDamaged;
  SegmentTable table = held.metadata->Table();
  const PageBuffer stored(held.extent.pages);
  std::memcpy(stored.bytes().data(), deps_.store.Bytes(held.extent).data(), stored.bytes().size());
  if (!codec.CanDecode(table)) {
    grant.status = BlockStatus::kUnsupported;
    return grant;
  }
  if (!codec.Decode(stored.bytes(), table, to, &table).ok()) {
    deps_.store.DropDamaged(held.ref);
    return grant;
  }
  SegmentRange range;
  grant.status = BlockStatus::kInvalid;
  if (!table.Range(request.first_layer, request.layers, &range).ok()) return grant;
  grant.status = BlockStatus::kOk;
  grant.tier = Tier::kHost;
  grant.extent = {.slab = 0, .offset = range.begin, .bytes = range.end - range.begin};
  if (!request.want_tables) return grant;
  table.segments = {table.segments.begin() + range.first,
                    table.segments.begin() + range.first + range.count};
  grant.table = std::move(table);
  return grant;
}

void AttachedSession::AnswerDecoded(const Filling& plan, size_t key, wire::BlockGrant block,
                                    ExtentReservation extent) {
  wire::Down down;
  {
    MutexLock lock(mu_);
    const auto lease = leases_.find(plan.lease);
    if (closed_ || lease == leases_.end() || lease->second.revoked) return;
    const auto number = static_cast<uint32_t>(key);
    if (block.status == BlockStatus::kOk) {
      lease->second.decoded.push_back(std::move(extent));
      down.ready.push_back({plan.request.id, number, std::move(block)});
    } else {
      down.failed.push_back({plan.request.id, number, block.status});
    }
  }
  extent.Reset();  // unless it is the lease's now
  if (!down.ready.empty()) {
    ++deps_.counters.blocks_hit;
    ++deps_.counters.blocks_decoded_for_lease;
  } else if (down.failed[0].status != BlockStatus::kCancelled) {
    ++deps_.counters.blocks_missing;
  }
  Send(std::move(down));
}

}  // namespace larder
