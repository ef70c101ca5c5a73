// Lease and Reservation: memory of the pool in the caller's hands, given back when dropped.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session_core.h"
#include "client/stoppable_wait.h"
#include "client/transport/shm_transport.h"
#include "client/transport/transport.h"

namespace larder {

namespace {

// Replaces the pending blocks of a grant by what became of them; kCancelled for those not there by
// the deadline.
absl::Status AwaitPending(SessionCore& core, OpenCall& call, const CallOptions& options,
                          TimePoint deadline, std::vector<wire::BlockGrant>& blocks) {
  const auto is_pending = [](const wire::BlockGrant& block) {
    return block.status == BlockStatus::kPending;
  };
  auto pending = std::count_if(blocks.begin(), blocks.end(), is_pending);
  while (pending > 0) {
    absl::StatusOr<std::vector<wire::BlockReady>> ready = AwaitUnlessStopped(
        options.stop, deadline, [&](TimePoint until) { return call.WaitReady(until); });
    if (absl::IsDeadlineExceeded(ready.status())) {
      core.CancelAcquire(call);
      for (wire::BlockGrant& block : blocks) {
        if (is_pending(block)) block.status = BlockStatus::kCancelled;
      }
      return absl::OkStatus();
    }
    if (!ready.ok()) return ready.status();
    for (wire::BlockReady& one : *ready) {
      if (one.key >= blocks.size() || !is_pending(blocks[one.key])) continue;
      blocks[one.key] = std::move(one.block);
      if (is_pending(blocks[one.key]))
        blocks[one.key].status = BlockStatus::kMissing;  // it may not wait again
      --pending;
    }
  }
  return absl::OkStatus();
}

// Sends a publish of `blocks` blocks and waits for what became of each.
absl::StatusOr<wire::Published> AwaitPublished(SessionCore& core, wire::Up up, OpenCall& call,
                                               size_t blocks, TimePoint deadline) {
  if (absl::Status status = core.Send(std::move(up)); !status.ok()) return status;
  absl::StatusOr<wire::Published> answer = call.Wait<wire::Published>(deadline);
  if (answer.ok() && answer->status.size() != blocks) {
    return absl::InternalError("the daemon answered a publish with another number of blocks");
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

bool Lease::Valid() const { return core_ != nullptr && id_ && core_->Holds(id_, word_); }

void Lease::Fill(size_t i, const wire::BlockGrant& grant) {
  Block& block = blocks_[i];
  block.status = grant.status;
  if (grant.status != BlockStatus::kOk) return;
  absl::StatusOr<MappedBytes> mapped = core_->Map(grant.extent, /*writable=*/false);
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
  if (absl::Status status = CheckBatch(digests.size()); !status.ok()) return status;
  const TimePoint deadline = DeadlineOf(options);
  OpenCall call = core->Open();
  wire::Up up;
  wire::Acquire& acquire = up.acquires.emplace_back();
  acquire.id = call.id();
  acquire.variant = variant.index;
  acquire.digests.assign(digests.begin(), digests.end());
  acquire.deadline_ms = DeadlineMs(options);
  acquire.remaining_bytes = options.remaining.value();
  acquire.accepted_codecs = {Codec::kIdentity};
  acquire.what = wire::AcquireWhat::kView;
  acquire.want_tables = options.tables;
  if (absl::Status status = core->Send(std::move(up)); !status.ok()) return status;
  absl::StatusOr<wire::Grant> grant = AwaitUnlessStopped(
      options.stop, deadline, [&](TimePoint until) { return call.Wait<wire::Grant>(until); });
  if (!grant.ok()) return grant.status();
  Lease lease;
  lease.core_ = core;
  lease.id_ = grant->lease;
  lease.word_ = grant->word;
  if (grant->blocks.size() != digests.size()) {
    return absl::InternalError(
        "the daemon answered with another number of blocks than it was asked for");
  }
  if (absl::Status status = AwaitPending(*core, call, options, deadline, grant->blocks);
      !status.ok())
    return status;
  lease.blocks_.resize(digests.size());
  for (size_t i = 0; i < digests.size(); ++i) lease.Fill(i, grant->blocks[i]);
  return lease;
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
  core_->EndExtent({id_, i, {}}, abort);
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
  reservation.extents_.resize(reserved.extents.size());
  if (reserved.extents.size() != bytes.size()) {
    return absl::InternalError("the daemon granted another number of extents than was asked for");
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    wire::ExtentGrant where = reserved.extents[i];
    where.bytes = bytes[i].value();
    absl::StatusOr<MappedBytes> mapped = core->Map(where, /*writable=*/true);
    if (!mapped.ok()) return mapped.status();
    reservation.extents_[i].bytes = mapped->bytes;
    reservation.extents_[i].mapping = std::move(mapped->owner);
  }
  return reservation;
}

absl::StatusOr<std::vector<BlockStatus>> Reservation::Publish(const VariantHandle& variant,
                                                              std::span<const Block> blocks,
                                                              const CallOptions& options) {
  if (core_ == nullptr) return absl::FailedPreconditionError("the reservation is empty");
  if (absl::Status status = CheckVariant(variant, core_->attached()); !status.ok()) return status;
  if (absl::Status status = CheckBatch(blocks.size()); !status.ok()) return status;
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
    if (block.extent >= extents_.size() || !extents_[block.extent].open) continue;
    if (block.tokens.size() != variant.spec.block_tokens ||
        !block.table.Validate(variant.spec.layers).ok()) {
      result[i] = BlockStatus::kInvalid;
      continue;
    }
    wire::PublishBlock& part = publish.blocks.emplace_back();
    part.extent = block.extent;
    part.digest = block.digest;
    part.parent = block.parent;
    part.tokens.assign(block.tokens.begin(), block.tokens.end());
    part.segments = block.table;
    part.content = block.content;
    sent.push_back(i);
  }
  if (sent.empty()) return result;
  const absl::StatusOr<wire::Published> answer =
      AwaitPublished(*core_, std::move(up), call, sent.size(), DeadlineOf(options));
  if (!answer.ok()) {
    // They may be visible by now, or soon.
    for (const size_t i : sent) End(blocks[i].extent, /*abort=*/true);
    return answer.status();
  }
  uint64_t published = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const BlockStatus status = result[sent[i]] = answer->status[i];
    // What was refused may be corrected and published again; all else is no longer ours.
    if (status != BlockStatus::kInvalid) End(blocks[sent[i]].extent, /*abort=*/false);
    published += status == BlockStatus::kOk ? 1 : 0;
  }
  core_->counters().blocks_put.fetch_add(published, std::memory_order_relaxed);
  return result;
}

}  // namespace larder
