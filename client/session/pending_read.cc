#include "client/session/pending_read.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {

PendingRead& PendingRead::operator=(PendingRead&& other) noexcept {
  if (this == &other) return *this;
  End();
  core_ = std::exchange(other.core_, nullptr);
  call_ = std::move(other.call_);
  room_ = std::move(other.room_);
  keys_ = std::exchange(other.keys_, 0);
  granted_ = std::exchange(other.granted_, false);
  lease_ = std::exchange(other.lease_, {});
  word_ = std::exchange(other.word_, 0);
  waits_ = std::move(other.waits_);
  pending_ = std::exchange(other.pending_, 0);
  return *this;
}

absl::StatusOr<PendingRead> PendingRead::Begin(SessionCore& core, ByteCount bytes,
                                               TimePoint deadline, wire::Acquire* acquire) {
  PendingRead read;
  if (core.reads_copied()) {
    LARDER_ASSIGN_OR_RETURN(auto room, core.staging()->AllocateRoom(bytes, deadline));
    acquire->staging_id = core.staging()->id();
    acquire->staging_offset = room->offset();
    acquire->staging_bytes = room->bytes().size();
    read.room_ = std::move(room);
  }
  read.core_ = &core;
  read.call_ = core.Open();
  read.keys_ = acquire->digests.size();
  acquire->id = read.call_.id();
  return read;
}

absl::StatusOr<wire::Grant> PendingRead::WaitGrant(TimePoint until) {
  absl::StatusOr<wire::Grant> grant = call_.Wait<wire::Grant>(until);
  LARDER_RETURN_IF_ERROR(grant.status());
  granted_ = true;
  lease_ = grant->lease;
  word_ = grant->word;
  waits_.resize(grant->blocks.size());
  for (size_t i = 0; i < grant->blocks.size(); ++i) {
    waits_[i] = grant->blocks[i].status == BlockStatus::kPending;
    pending_ += waits_[i] ? 1 : 0;
  }
  if (grant->blocks.size() != keys_) {
    return absl::InternalError(absl::StrCat("the daemon answered ", keys_, " keys with ",
                                            grant->blocks.size(), " blocks"));
  }
  return grant;
}

absl::StatusOr<std::vector<wire::BlockReady>> PendingRead::WaitReady(TimePoint until) {
  absl::StatusOr<std::vector<wire::BlockReady>> ready = call_.WaitReady(until);
  LARDER_RETURN_IF_ERROR(ready.status());
  std::erase_if(*ready, [this](wire::BlockReady& one) {
    if (one.key >= waits_.size() || !waits_[one.key]) return true;
    waits_[one.key] = false;
    --pending_;
    if (one.block.status == BlockStatus::kPending)
      one.block.status = BlockStatus::kMissing;  // a key may not become pending again
    return false;
  });
  return ready;
}

absl::StatusOr<MappedBytes> PendingRead::Map(const wire::ExtentGrant& extent) const {
  if (room_ == nullptr) return core_->Map(extent, /*writable=*/false);
  const uint64_t begin = room_->offset();
  const uint64_t size = room_->bytes().size();
  if (extent.slab != 0 || !wire::IsWellFormed(extent) || extent.offset < begin ||
      extent.offset - begin > size || extent.bytes > size - (extent.offset - begin)) {
    return absl::InternalError(absl::StrCat(
        "the daemon named bytes outside the part of the staging segment that it was given: offset ",
        extent.offset, ", bytes ", extent.bytes));
  }
  return MappedBytes{room_, room_->bytes().subspan(extent.offset - begin, extent.bytes)};
}

bool PendingRead::Holds() const {
  return room_ != nullptr || (lease_ && core_->Holds(lease_, word_));
}

void PendingRead::End() {
  SessionCore* const core = std::exchange(core_, nullptr);
  if (core == nullptr) return;
  if (room_ != nullptr && (!granted_ || pending_ > 0)) {
    core->EndLater(std::move(call_), {std::move(room_), lease_, granted_, pending_});
  } else if (lease_) {
    core->EndLease(lease_);
  }
  call_ = {};
  room_.reset();
  lease_ = {};
}

}  // namespace larder
