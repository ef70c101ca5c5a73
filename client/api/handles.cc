// Lease and Reservation: memory that the caller holds and that their destructors return.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/pending_read.h"
#include "client/session/session_core.h"
#include "client/session/stoppable_wait.h"
#include "client/transport/shm_transport.h"
#include "client/transport/transport.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {

namespace {

// Assumed size, in bytes, of a block of a variant of which no block's size is known yet.
constexpr uint64_t kGuessBytes = 1 << 20;
// The smallest part of the staging segment that BeginCopies allocates.  If the blocks do not fit in
// it, the daemon's answer has their sizes.
constexpr uint64_t kLeastBytes = PayloadStride(1);
// While no size is known, an acquire by copies allocates at most a quarter (one kGuessShare-th) of
// the staging segment.
constexpr uint64_t kGuessShare = 4;
// How long at most each request of an Acquire by copies waits for free memory in the staging
// segment.  Gets and Puts of other threads free what they use soon; Leases may never do so.
constexpr std::chrono::milliseconds kRoomPatience{100};

// Replaces the pending blocks of a grant by their final answers.  Blocks that have none by the
// deadline, or soon after a stop, become kCancelled.
absl::Status AwaitPending(PendingRead& read, const CallOptions& options, TimePoint deadline,
                          std::vector<wire::BlockGrant>& blocks) {
  while (read.pending() > 0) {
    absl::StatusOr<std::vector<wire::BlockReady>> ready = AwaitUnlessStopped(
        options.stop, deadline, [&](TimePoint until) { return read.WaitReady(until); });
    if (absl::IsDeadlineExceeded(ready.status())) {
      read.Cancel();
      for (wire::BlockGrant& block : blocks) {
        if (block.status == BlockStatus::kPending) block.status = BlockStatus::kCancelled;
      }
      return absl::OkStatus();
    }
    LARDER_RETURN_IF_ERROR(ready.status());
    for (wire::BlockReady& one : *ready) blocks[one.key] = std::move(one.block);
  }
  return absl::OkStatus();
}

wire::Acquire ViewOf(const VariantHandle& variant, std::vector<Digest> digests,
                     const CallOptions& options) {
  wire::Acquire acquire;
  acquire.variant = variant.index;
  acquire.digests = std::move(digests);
  acquire.deadline_ms = DeadlineMs(options);
  acquire.promised_lease = options.promise;
  acquire.remaining_bytes = options.remaining.value();
  acquire.accepted_codecs = {Codec::kIdentity};
  acquire.what = wire::AcquireWhat::kView;
  acquire.want_tables = options.tables;
  return acquire;
}

// Sends the acquire and waits for the grant and for its pending blocks.
absl::StatusOr<std::vector<wire::BlockGrant>> AwaitBlocks(SessionCore& core, PendingRead& read,
                                                          wire::Acquire acquire,
                                                          const CallOptions& options,
                                                          TimePoint deadline) {
  wire::Up up;
  up.acquires.push_back(std::move(acquire));
  LARDER_RETURN_IF_ERROR(core.Send(std::move(up)));
  LARDER_ASSIGN_OR_RETURN(wire::Grant grant,
                          AwaitUnlessStopped(options.stop, deadline, [&](TimePoint until) {
                            return read.WaitGrant(until);
                          }));
  LARDER_RETURN_IF_ERROR(AwaitPending(read, options, deadline, grant.blocks));
  return std::move(grant.blocks);
}

// Sends a publish of `blocks` blocks and waits for their statuses.
absl::StatusOr<wire::Published> AwaitPublished(SessionCore& core, wire::Up up, OpenCall& call,
                                               size_t blocks, const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(core.Send(std::move(up)));
  absl::StatusOr<wire::Published> answer =
      AwaitAnswer<wire::Published>(call, options.stop, DeadlineOf(options));
  if (answer.ok() && answer->status.size() != blocks) {
    return absl::InternalError(
        "the daemon answered a publish with another number of statuses than blocks");
  }
  return answer;
}

}  // namespace

// ---- Lease

Lease::Lease(Lease&& other) noexcept { *this = std::move(other); }

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    Release();
    core_ = std::exchange(other.core_, nullptr);
    id_ = std::exchange(other.id_, {});
    word_ = std::exchange(other.word_, 0);
    blocks_ = std::exchange(other.blocks_, {});
  }
  return *this;
}

Lease::~Lease() { Release(); }

void Lease::Release() {
  for (Block& block : blocks_) {
    block.view = {};
    block.mapping.reset();
  }
  const std::shared_ptr<SessionCore> core = std::exchange(core_, nullptr);
  if (core != nullptr && id_) core->EndLease(id_);
}

bool Lease::Valid() const {
  if (core_ == nullptr) return false;
  if (core_->reads_copied()) return core_->status().ok();
  return id_ && core_->Holds(id_, word_);
}

void Lease::Fill(size_t i, const PendingRead& read, const wire::BlockGrant& grant) {
  Block& block = blocks_[i];
  block.status = grant.status;
  if (grant.status != BlockStatus::kOk) return;
  absl::StatusOr<MappedBytes> mapped = read.Map(grant.extent);
  if (!mapped.ok()) {
    block.status = StatusOfUnmapped(mapped.status(), BlockStatus::kDamaged);
    return;
  }
  block.view = mapped->bytes;
  block.mapping = std::move(mapped->owner);
  block.table = grant.table;
}

absl::StatusOr<Lease> Lease::Take(const std::shared_ptr<SessionCore>& core,
                                  const VariantHandle& variant, std::span<const Digest> digests,
                                  const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(CheckBatch(digests.size()));
  if (options.tables && digests.size() > wire::Acquire::kTablesMax) {
    return absl::InvalidArgumentError(absl::StrCat("CallOptions.tables: at most ",
                                                   wire::Acquire::kTablesMax, " blocks, not ",
                                                   digests.size()));
  }
  Lease lease;
  lease.core_ = core;
  lease.blocks_.resize(digests.size());
  if (core->reads_copied()) {
    LARDER_RETURN_IF_ERROR(lease.TakeCopies(variant, digests, options));
    return lease;
  }
  const TimePoint deadline = DeadlineOf(options);
  wire::Acquire acquire = ViewOf(variant, {digests.begin(), digests.end()}, options);
  LARDER_ASSIGN_OR_RETURN(PendingRead read,
                          PendingRead::Begin(*core, ByteCount(0), deadline, &acquire));
  LARDER_ASSIGN_OR_RETURN(const auto blocks,
                          AwaitBlocks(*core, read, std::move(acquire), options, deadline));
  for (size_t i = 0; i < blocks.size(); ++i) lease.Fill(i, read, blocks[i]);
  lease.word_ = read.word();
  lease.id_ = read.TakeLease();
  return lease;
}

// For a block that did not fit, the daemon's answer has the block's size, so that the next round
// can allocate enough.
absl::Status Lease::TakeCopies(const VariantHandle& variant, std::span<const Digest> digests,
                               const CallOptions& options) {
  // One round more than is needed if no block changes its size, because a block may be evicted and
  // stored again with another size.
  constexpr int kRounds = 3;
  const TimePoint deadline = DeadlineOf(options);
  std::vector<size_t> todo(digests.size());
  std::iota(todo.begin(), todo.end(), size_t{0});
  uint64_t room = 0;
  for (int round = 0; round < kRounds && !todo.empty(); ++round) {
    auto read = BeginCopies(variant, digests, todo, room, options, deadline);
    if (absl::IsDeadlineExceeded(read.status()))
      break;  // no capacity: the remaining blocks are kFull
    LARDER_RETURN_IF_ERROR(read.status());
    LARDER_ASSIGN_OR_RETURN(
        auto blocks, AwaitBlocks(*core_, read->first, std::move(read->second), options, deadline));
    std::vector<size_t> again;
    room = 0;
    for (size_t i = 0; i < todo.size(); ++i) {
      const wire::BlockGrant& block = blocks[i];
      Fill(todo[i], read->first, block);
      if (block.extent.bytes == 0) continue;
      core_->NoteBlock(variant.index, block.extent.bytes);
      const uint64_t more = room + PayloadStride(block.extent.bytes);
      if (block.status != BlockStatus::kFull || more > core_->staging()->size().value()) continue;
      room = more;
      again.push_back(todo[i]);
    }
    todo = std::move(again);
  }
  return absl::OkStatus();
}

// Allocates `room` bytes of the staging segment for the acquire of the blocks `todo`, and sets
// their status to kFull until they are answered.  If `room` is 0, allocates about what the blocks
// are expected to need, as far as the segment is large enough, or kLeastBytes if that much is not
// free now.  Returns DeadlineExceeded if the memory does not become free in time.
absl::StatusOr<std::pair<PendingRead, wire::Acquire>> Lease::BeginCopies(
    const VariantHandle& variant, std::span<const Digest> digests, std::span<const size_t> todo,
    uint64_t room, const CallOptions& options, TimePoint deadline) {
  std::vector<Digest> names;
  for (const size_t i : todo) names.push_back(digests[i]);
  for (const size_t i : todo) blocks_[i].status = BlockStatus::kFull;
  wire::Acquire acquire = ViewOf(variant, std::move(names), options);
  const TimePoint patience = std::min(deadline, SteadyNow() + kRoomPatience);
  const uint64_t size = core_->staging()->size().value();
  if (room == 0) {
    const uint64_t known = core_->LargestBlock(variant.index);
    const uint64_t each = PayloadStride(known > 0 ? known : kGuessBytes);
    const uint64_t most = known > 0 ? size : size / kGuessShare;
    room = std::clamp<uint64_t>(each * todo.size(), kLeastBytes, most);
    absl::StatusOr<PendingRead> guess =
        PendingRead::Begin(*core_, ByteCount(room), TimePoint(), &acquire);
    if (guess.ok()) return std::pair(*std::move(guess), std::move(acquire));
    if (!absl::IsDeadlineExceeded(guess.status())) return guess.status();
    room = kLeastBytes;  // the daemon's answer has the blocks' sizes
  }
  LARDER_ASSIGN_OR_RETURN(PendingRead read,
                          PendingRead::Begin(*core_, ByteCount(room), patience, &acquire));
  return std::pair(std::move(read), std::move(acquire));
}

// ---- Reservation

Reservation::Reservation(Reservation&& other) noexcept { *this = std::move(other); }

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Reset();
    core_ = std::exchange(other.core_, nullptr);
    id_ = std::exchange(other.id_, {});
    extents_ = std::exchange(other.extents_, {});
  }
  return *this;
}

Reservation::~Reservation() { Reset(); }

void Reservation::End(uint32_t i, bool abort) {
  Extent& extent = extents_[i];
  if (!std::exchange(extent.open, false)) return;
  extent.bytes = {};
  extent.mapping.reset();
  core_->EndExtent({id_, extent.number, {}}, abort);
}

void Reservation::Reset() {
  if (core_ == nullptr) return;
  for (uint32_t i = 0; i < extents_.size(); ++i) End(i, /*abort=*/true);
  core_ = nullptr;
}

absl::StatusOr<Reservation> Reservation::Take(const std::shared_ptr<SessionCore>& core,
                                              const wire::Reserved& reserved,
                                              std::span<const ByteCount> bytes) {
  Reservation reservation;
  reservation.core_ = core;
  reservation.id_ = reserved.reservation;
  reservation.extents_.resize(bytes.size());
  for (Extent& extent : reservation.extents_) extent.open = false;
  for (const uint32_t taken : reserved.taken)
    if (taken < bytes.size()) reservation.extents_[taken].taken = true;
  // From here on the destructor returns the extents that were granted.
  uint32_t number = 0;
  for (Extent& extent : reservation.extents_) {
    if (extent.taken || number >= reserved.extents.size()) continue;
    extent.number = number++;
    extent.open = true;
  }
  const auto left_out = std::ranges::count(reservation.extents_, true, &Extent::taken);
  if (reserved.extents.size() + static_cast<size_t>(left_out) != bytes.size()) {
    return absl::InternalError("the daemon granted another number of extents than requested");
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    Extent& extent = reservation.extents_[i];
    if (extent.taken) continue;
    wire::ExtentGrant where = reserved.extents[extent.number];
    where.bytes = bytes[i].value();
    LARDER_ASSIGN_OR_RETURN(MappedBytes mapped, core->Map(where, /*writable=*/true));
    extent.bytes = mapped.bytes;
    extent.mapping = std::move(mapped.owner);
  }
  return reservation;
}

absl::StatusOr<std::vector<BlockStatus>> Reservation::Publish(const VariantHandle& variant,
                                                              std::span<const Block> blocks,
                                                              const CallOptions& options) {
  if (core_ == nullptr)
    return absl::FailedPreconditionError("the reservation is empty: Reserve first");
  LARDER_RETURN_IF_ERROR(CheckVariant(variant, core_->attached()));
  LARDER_RETURN_IF_ERROR(CheckBatch(blocks.size()));
  std::vector<BlockStatus> result(blocks.size(), BlockStatus::kNotHeld);
  std::vector<size_t> sent;
  OpenCall call = core_->Open();
  wire::Up up;
  wire::Publish& publish = up.publishes.emplace_back();
  publish.id = call.id();
  publish.reservation = id_;
  publish.variant = variant.index;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    if (block.extent < extents_.size() && extents_[block.extent].taken)
      result[i] = BlockStatus::kDuplicate;
    if (block.extent >= extents_.size() || !extents_[block.extent].open) continue;
    if (block.tokens.size() != variant.spec.block_tokens ||
        !block.table.Validate(variant.spec.layers).ok()) {
      result[i] = BlockStatus::kInvalid;
      continue;
    }
    wire::PublishBlock& part = publish.blocks.emplace_back();
    part.extent = extents_[block.extent].number;
    part.digest = block.digest;
    part.parent = block.parent;
    part.tokens.assign(block.tokens.begin(), block.tokens.end());
    part.segments = block.table;
    part.content = block.content;
    sent.push_back(i);
  }
  if (sent.empty()) return result;
  const absl::StatusOr<wire::Published> answer =
      AwaitPublished(*core_, std::move(up), call, sent.size(), options);
  if (!answer.ok()) {
    // The daemon may have published the blocks, or may do so soon.
    for (const size_t i : sent) End(blocks[i].extent, /*abort=*/true);
    return answer.status();
  }
  uint64_t published = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const BlockStatus status = result[sent[i]] = answer->status[i];
    // A block of status kInvalid may be corrected and published again; with any other status the
    // caller no longer owns the extent.  If the daemon did not take the block, the extent must be
    // aborted, because the daemon may still keep it for the reservation.
    const bool taken = status == BlockStatus::kOk || status == BlockStatus::kDuplicate;
    if (status != BlockStatus::kInvalid) End(blocks[sent[i]].extent, /*abort=*/!taken);
    published += status == BlockStatus::kOk ? 1 : 0;
  }
  core_->counters().blocks_put.fetch_add(published, std::memory_order_relaxed);
  return result;
}

}  // namespace larder
