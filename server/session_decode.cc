// What a session does about blocks that HOST has encoded: given as they are to who accepts that,
// else decoded into an extent of the lease's own.  The block stays as it is.
#include <algorithm>
#include <cstring>
#include <utility>

#include "server/session.h"
#include "storage/disk/page_buffer.h"
#include "storage/payload_codec.h"

namespace larder {

// Blocks of one acquire, held for this; in the order in which they are wanted.
struct AttachedSession::Decoding {
  struct Block {
    size_t key = 0;
    BlockIndex::Held held;
  };
  wire::Acquire request;  // without its digests
  SessionVariant variant;
  LeaseId lease;
  std::vector<Block> blocks;
  size_t next = 0;
};

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
  const ByteCount share = deps_.store.lease_budget();
  auto plan = std::make_shared<Decoding>(
      Decoding{.request = request, .variant = variant, .lease = lease, .blocks = {}});
  plan->request.digests.clear();
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const BlockIndex::Held& block = held.blocks[i];
    if (grant->blocks[i].status != BlockStatus::kPending || !InHost(block.state)) continue;
    const ByteCount bytes(PagesFor(block.metadata->raw_payload_bytes()) * kPageBytes);
    if (leased_ + record->charged + bytes > share || !deps_.store.HoldAgain({&block.ref, 1})) {
      grant->blocks[i] = {.status = BlockStatus::kFull, .tier = {}, .extent = {}, .table = {}};
      grant->retry_after_ms = kRetryAfterFullMs;
      continue;
    }
    record->charged += bytes;
    plan->blocks.push_back({i, block});
  }
  if (!plan->blocks.empty()) decodings_.push_back(std::move(plan));
}

void AttachedSession::StartDecodings() {
  std::vector<std::shared_ptr<Decoding>> plans;
  {
    MutexLock lock(mu_);
    plans.swap(decodings_);
  }
  for (const std::shared_ptr<Decoding>& plan : plans) {
    if (!SubmitDecoding(plan)) GiveUp(*plan, BlockStatus::kFull);
  }
}

bool AttachedSession::SubmitDecoding(const std::shared_ptr<Decoding>& plan) {
  return deps_.workers.Submit(sizeof(Decoding) + plan->blocks.size() * sizeof(Decoding::Block),
                              [self = shared_from_this(), plan] { self->Decode(plan); });
}

// Some of them, then it is others' turn.
void AttachedSession::Decode(const std::shared_ptr<Decoding>& plan) {
  constexpr ByteCount kAtOnce = MiB(16);
  PayloadCodec codec;
  ByteCount done;
  while (plan->next < plan->blocks.size()) {
    done += plan->blocks[plan->next].held.metadata->raw_payload_bytes();
    DecodeNext(*plan, codec);
    if (done >= kAtOnce && plan->next < plan->blocks.size() && SubmitDecoding(plan)) return;
  }
}

void AttachedSession::GiveUp(Decoding& plan, BlockStatus status) {
  for (; plan.next < plan.blocks.size(); ++plan.next) {
    const Decoding::Block& block = plan.blocks[plan.next];
    deps_.store.Unhold({&block.held.ref, 1});
    AnswerDecoded(plan, block.key, {.status = status, .tier = {}, .extent = {}, .table = {}}, {});
  }
}

void AttachedSession::DecodeNext(Decoding& plan, PayloadCodec& codec) {
  const Decoding::Block& block = plan.blocks[plan.next++];
  wire::BlockGrant grant;
  grant.status = BlockStatus::kCancelled;
  ExtentReservation extent;
  if (Wanted(plan.lease)) {
    const ByteCount bytes = block.held.metadata->raw_payload_bytes();
    BlockStore::ReserveResult room =
        deps_.store.Reserve({&bytes, 1}, deps_.store.pool().total_bytes());
    grant.status = room.status;
    extent = std::move(room.reservation);
    if (grant.status == BlockStatus::kOk)
      grant = DecodedGrant(plan.request, block.held, extent.extent(0), codec);
  }
  deps_.store.Unhold({&block.held.ref, 1});
  AnswerDecoded(plan, block.key, std::move(grant), std::move(extent));
}

bool AttachedSession::Wanted(LeaseId lease) {
  MutexLock lock(mu_);
  const auto record = leases_.find(lease);
  return !closed_ && record != leases_.end() && !record->second.revoked &&
         !record->second.cancelled;
}

// From a copy of our own: who may write to the pool could change it while it is decoded.
wire::BlockGrant AttachedSession::DecodedGrant(const wire::Acquire& request,
                                               const BlockIndex::Held& held, const Extent& to,
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
  if (!codec.Decode(stored.bytes(), table, deps_.store.Bytes(to), &table).ok()) {
    deps_.store.DropDamaged(held.ref);
    return grant;
  }
  SegmentRange range;
  grant.status = BlockStatus::kInvalid;
  if (!table.Range(request.first_layer, request.layers, &range).ok()) return grant;
  grant.status = BlockStatus::kOk;
  grant.tier = Tier::kHost;
  grant.extent = {.slab = static_cast<uint32_t>(to.slab),
                  .offset = to.offset() + range.begin,
                  .bytes = range.end - range.begin};
  if (!request.want_tables) return grant;
  table.segments = {table.segments.begin() + range.first,
                    table.segments.begin() + range.first + range.count};
  grant.table = std::move(table);
  return grant;
}

void AttachedSession::AnswerDecoded(const Decoding& plan, size_t key, wire::BlockGrant block,
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
