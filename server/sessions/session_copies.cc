// Reads of a session that may not map slabs: a worker copies each block into a room that the
// client named in its staging segment, and answers for it.
//
// The pool's blocks are held until then, and no longer than the lease's deadline: nothing of the
// process can touch them, so there is nobody to wait for.
#include <algorithm>
#include <cstring>
#include <utility>

#include "server/sessions/session.h"
#include "server/sessions/session_filling.h"
#include "storage/codec/payload_codec.h"
#include "storage/disk/page_buffer.h"

namespace larder {
namespace {

// Bytes and blocks that one message answers for: so many that messages do not matter, so few that
// the client's copy overlaps with the next of ours.
constexpr uint64_t kAnswerBytes = 1 << 20;
constexpr size_t kAnswerBlocks = 64;
constexpr uint64_t kJobBytes = 16 << 20;  // then it is others' turn
constexpr size_t kWaitingMax = 64;        // acquires of a session
// Keys of one acquire that name a block again.  The lease holds and charges that block once, so
// without this limit a short message could queue any number of copies free of charge.
constexpr size_t kRepeatsMax = 128;

// Copies a range of a payload; false: a segment does not have its hash.  A writer that maps the
// pool may change it meanwhile, so what is hashed is what is copied.
bool CopyChecked(const CopyKernel& kernel, const BlockMetadata& metadata, const SegmentRange& range,
                 std::span<const std::byte> from, std::span<std::byte> to) {
  uint64_t at = 0;
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    const Segment& segment = metadata.segment(i);
    if (kernel.CopyAndHash(to.subspan(at, segment.bytes), from.subspan(at, segment.bytes)) !=
        segment.xxh3) {
      return false;
    }
    const uint64_t end = at + segment.bytes;
    at = std::min<uint64_t>(RoundUp(end, kSegmentAlign), to.size());
    std::memset(to.data() + end, 0, at - end);
  }
  return true;
}

}  // namespace

std::shared_ptr<AttachedSession::CopyRoom> AttachedSession::CopyRoom::Of(
    std::shared_ptr<const StagingSegment> segment, uint64_t offset, uint64_t bytes) {
  if (segment == nullptr) return nullptr;
  const uint64_t size = segment->bytes().size();
  if (offset % kSegmentAlign != 0 || offset > size || bytes > size - offset) return nullptr;
  return std::shared_ptr<CopyRoom>(new CopyRoom(std::move(segment), offset, offset + bytes));
}

std::optional<AttachedSession::CopyRoom::Place> AttachedSession::CopyRoom::Take(uint64_t bytes) {
  MutexLock lock(mu_);
  if (bytes > end_ - next_) return std::nullopt;
  const uint64_t offset = next_;
  next_ = std::min(end_, offset + RoundUp(bytes, kSegmentAlign));
  return Place{offset, segment_->bytes().subspan(offset, bytes)};
}

bool AttachedSession::ByCopies(const wire::Acquire& request) const {
  return read_mode_ == wire::ReadMode::kCopied && request.what != wire::AcquireWhat::kPromise;
}

// Every block that the grant gives becomes PENDING, and part of a filling.
void AttachedSession::PlanCopies(const wire::Acquire& request, const SessionVariant& variant,
                                 const BlockStore::AcquireResult& held, LeaseId lease,
                                 const LeaseRecord& record, wire::Grant* grant) {
  auto plan = NewFilling(request, variant, lease);
  plan->room = record.room;
  size_t repeats = 0;
  plan->blocks.reserve(std::min(held.blocks.size(), held.lease.size() + kRepeatsMax));
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const BlockIndex::Held& block = held.blocks[i];
    wire::BlockGrant& answer = grant->blocks[i];
    const bool encoded = answer.status == BlockStatus::kPending && InHost(block.state);
    if (answer.status != BlockStatus::kOk && !encoded) continue;
    repeats += block.repeated ? 1 : 0;
    if (repeats > kRepeatsMax || !AddToFilling(i, block, answer, *plan)) {
      answer = {.status = BlockStatus::kFull, .tier = {}, .extent = {}, .table = {}};
      grant->retry_after_ms = kRetryAfterFullMs;
      continue;
    }
    answer = {.status = BlockStatus::kPending, .tier = answer.tier, .extent = {}, .table = {}};
  }
  if (!plan->blocks.empty()) fillings_.push_back(std::move(plan));
}

bool AttachedSession::AddToFilling(size_t key, const BlockIndex::Held& held,
                                   const wire::BlockGrant& grant, Filling& plan) {
  if (!plan.holds.Add(held.ref)) return false;
  FillingBlock& block = plan.blocks.emplace_back();
  block.key = key;
  block.held = held;
  if (grant.status != BlockStatus::kOk) return true;  // to be decoded
  const uint64_t begin = grant.extent.offset - held.extent.offset();
  SegmentRange range{0, held.metadata->segment_count(), begin, begin + grant.extent.bytes};
  const bool whole = begin == 0 && grant.extent.bytes == held.metadata->payload_bytes().value();
  if (!whole)  // as GrantOne found it
    (void)held.metadata->Table().Range(plan.request.first_layer, plan.request.layers, &range);
  block.as_it_is = range;
  block.check = sampler_.Next();
  block.wants_table = grant.table.has_value();
  block.grant.status = grant.status;
  block.grant.tier = grant.tier;
  return true;
}

// One job of a session at a time: its copies wait for each other, and not others for them.
void AttachedSession::StartCopies(std::shared_ptr<Filling> plan) {
  bool first = false;
  {
    MutexLock lock(mu_);
    first = !std::exchange(copying_, true);
    if (!first && waiting_copies_.size() < kWaitingMax) {
      plan->waits = account_.Take(ShareKind::kMessageBytes, plan->bytes()).ticket;
      if (plan->waits) {
        waiting_copies_.push_back(std::move(plan));
        return;
      }
    }
  }
  first ? RunCopies(std::move(plan)) : GiveUp(*plan, BlockStatus::kFull);
}

void AttachedSession::RunCopies(std::shared_ptr<Filling> plan) {
  while (plan != nullptr && !SubmitFilling(plan)) {
    GiveUp(*plan, BlockStatus::kFull);
    plan = NextCopies();
  }
}

std::shared_ptr<AttachedSession::Filling> AttachedSession::NextCopies() {
  MutexLock lock(mu_);
  copying_ = !waiting_copies_.empty();
  if (!copying_) return nullptr;
  std::shared_ptr<Filling> next = std::move(waiting_copies_.front());
  waiting_copies_.pop_front();
  return next;
}

void AttachedSession::CopyOut(const std::shared_ptr<Filling>& plan) {
  PayloadCodec codec;
  wire::Down down;
  uint64_t unanswered = 0, done = 0;
  while (plan->next < plan->blocks.size()) {
    const FillingBlock& block = plan->blocks[plan->next++];
    wire::BlockGrant grant;
    grant.status = BlockStatus::kCancelled;
    if (Wanted(plan->lease)) grant = CopyOne(*plan, block, codec);
    plan->ReleaseAtEnd();
    unanswered += grant.extent.bytes;
    done += grant.extent.bytes;
    CountCopied(*plan, block, grant);
    AddAnswer(*plan, block.key, std::move(grant), &down);
    if (unanswered >= kAnswerBytes || down.ready.size() + down.failed.size() >= kAnswerBlocks) {
      SendAnswers(plan->lease, std::exchange(down, {}));
      unanswered = 0;
    }
    if (done < kJobBytes || plan->next == plan->blocks.size()) continue;
    SendAnswers(plan->lease, std::exchange(down, {}));
    if (SubmitFilling(plan)) return;
    done = 0;
  }
  SendAnswers(plan->lease, std::move(down));
  EndCopies(plan->lease);
  RunCopies(NextCopies());
}

wire::BlockGrant AttachedSession::CopyOne(const Filling& plan, const FillingBlock& block,
                                          PayloadCodec& codec) {
  wire::BlockGrant grant = block.grant;
  std::optional<PageBuffer> decoded;
  std::span<const std::byte> from;
  if (block.as_it_is) {
    const SegmentRange& range = *block.as_it_is;
    from = deps_.store.Bytes(block.held.extent).subspan(range.begin, range.end - range.begin);
    if (block.wants_table) grant.table = block.held.metadata->Table(range);
  } else {
    decoded.emplace(static_cast<uint32_t>(PagesFor(block.held.metadata->raw_payload_bytes())));
    grant = Decoded(plan.request, block.held, decoded->bytes(), codec);
    if (grant.status != BlockStatus::kOk) return grant;
    from = decoded->bytes().subspan(grant.extent.offset, grant.extent.bytes);
  }
  if (plan.read_from_disk) grant.tier = Tier::kDisk;  // where it was found
  const auto place = plan.room->Take(from.size());
  if (!place) {
    return {
        .status = BlockStatus::kFull, .tier = {}, .extent = {.bytes = from.size()}, .table = {}};
  }
  if (!CopyTo(block, from, place->bytes)) {
    deps_.store.DropDamaged(block.held.ref);
    return {.status = BlockStatus::kDamaged, .tier = {}, .extent = {}, .table = {}};
  }
  grant.extent = {.slab = 0, .offset = place->offset, .bytes = from.size()};
  return grant;
}

// False: damaged.
bool AttachedSession::CopyTo(const FillingBlock& block, std::span<const std::byte> from,
                             std::span<std::byte> to) {
  bool whole = true;
  if (block.check) {
    ++deps_.counters.host_checks;
    // What its writer left to the daemon is hashed first.
    whole = block.held.metadata->hashed() || deps_.store.Check(block.held, *block.as_it_is);
    whole =
        whole && CopyChecked(deps_.copy_kernel, *block.held.metadata, *block.as_it_is, from, to);
  } else {
    deps_.copy_kernel.Copy(to, from);
  }
  StoreFence();
  return whole;
}

void AttachedSession::CountCopied(const Filling& plan, const FillingBlock& block,
                                  const wire::BlockGrant& grant) {
  if (grant.status != BlockStatus::kOk) {
    if (grant.status != BlockStatus::kCancelled) ++deps_.counters.blocks_missing;
    return;
  }
  deps_.counters.copied_bytes += grant.extent.bytes;
  if (!block.as_it_is) ++deps_.counters.blocks_decoded_for_lease;
  if (plan.read_from_disk) {
    ++deps_.counters.blocks_from_disk;
    deps_.counters.got_disk_bytes += grant.extent.bytes;
    deps_.counters.got_disk_tokens += plan.variant.block_tokens;
    deps_.counters.latencies.disk_read.Observe(deps_.clock.Now() - *plan.read_from_disk);
  } else {
    ++deps_.counters.blocks_hit;
    deps_.counters.got_host_bytes += grant.extent.bytes;
    deps_.counters.got_host_tokens += plan.variant.block_tokens;
  }
}

void AttachedSession::AddAnswer(const Filling& plan, size_t key, wire::BlockGrant grant,
                                wire::Down* down) {
  const auto number = static_cast<uint32_t>(key);
  if (grant.status == BlockStatus::kOk) {
    down->ready.push_back({plan.request.id, number, std::move(grant)});
  } else {
    down->failed.push_back({plan.request.id, number, grant.status, grant.extent.bytes});
  }
}

// None once the lease was released.
void AttachedSession::SendAnswers(LeaseId lease, wire::Down down) {
  if (down.ready.empty() && down.failed.empty()) return;
  {
    MutexLock lock(mu_);
    if (closed_ || !leases_.contains(lease)) return;
  }
  Send(std::move(down));
}

// Of a lease for which nothing is read from disk any more.
void AttachedSession::EndCopies(LeaseId lease) {
  MutexLock lock(mu_);
  const auto found = leases_.find(lease);
  if (found != leases_.end() && !found->second.promotion) LetGo(found->second);
}

// Its blocks and its segment; what is being copied is held for that.
void AttachedSession::LetGo(LeaseRecord& record) {
  record.bytes.Reset();
  record.lease.Reset();
  record.room.reset();
  record.deadline = TimePoint::max();
}

}  // namespace larder
