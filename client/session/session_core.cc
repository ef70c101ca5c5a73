#include "client/session/session_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// The limit for the extents that all sessions of a Client reserve ahead is one eighth of
// lease_bytes_max, so that most of the process's share of the pool is left for other uses.
constexpr uint64_t kStockShareOfLease = 8;
// If the daemon lacks memory for a larger staging segment, sizes down to this are tried.
constexpr ByteCount kStagingBytesLeast = MiB(4);

}  // namespace

SessionCore::SessionCore(std::shared_ptr<SharedMemory> memory,
                         DirectiveRunner::Handler on_directive,
                         std::shared_ptr<std::atomic<size_t>> beside)
    : beside_(std::move(beside)),
      memory_(memory),
      calls_([this](Answer answer) { OnUnclaimed(std::move(answer)); }),
      book_(beside_),
      slabs_(std::move(memory)),
      outbox_([this](TimePoint now) { return Chores(now); }) {
  if (!on_directive) return;
  directives_ =
      std::make_unique<DirectiveRunner>(std::move(on_directive), UnixMilliseconds,
                                        [this](wire::Up up) { return Send(std::move(up)); });
}

SessionCore::~SessionCore() { (void)Close(); }

absl::Status SessionCore::Start(wire::Attached attached, SessionChannel* channel,
                                ByteCount staging_bytes) {
  attached_ = std::move(attached);
  const std::shared_ptr<SharedMemory> memory = std::exchange(memory_, nullptr);
  if (attached_.write_mode != WriteMode::kStream) {
    if (memory == nullptr)
      return absl::InternalError(
          "the daemon granted shared memory to a session that has no sideband");
    LARDER_ASSIGN_OR_RETURN(std::shared_ptr<const RevocationWords> page,
                            memory->MapSessionPage(attached_.session));
    {
      MutexLock lock(mu_);
      if (status_.ok()) {
        page_ = std::move(page);
        counted_ = beside_ != nullptr;
        if (counted_) ++*beside_;
      }
    }
    if (writes_staged() || reads_copied()) {
      LARDER_RETURN_IF_ERROR(BringStaging(memory, staging_bytes));
    }
    book_.SetStockLimit(ByteCount(attached_.lease_bytes_max.value() / kStockShareOfLease));
  }
  if (MessagePump* const pump = channel->pump(); pump != nullptr) calls_.StartPump(pump);
  outbox_.Start(channel);
  return status();
}

absl::Status SessionCore::Send(wire::Up up) {
  if (in_child()) return status();
  return outbox_.Send(std::move(up));
}

absl::StatusOr<MappedBytes> SessionCore::Map(const wire::ExtentGrant& extent, bool writable) {
  absl::StatusOr<MappedBytes> mapped = slabs_.Map(extent, writable);
  if (absl::IsUnavailable(mapped.status()) || absl::IsDeadlineExceeded(mapped.status())) {
    OnBroken(mapped.status());
    outbox_.CancelChannel();
  }
  return mapped;
}

absl::Status SessionCore::BringStaging(const std::shared_ptr<SharedMemory>& memory,
                                       ByteCount bytes) {
  if (bytes == ByteCount(0)) return absl::InvalidArgumentError("staging_bytes must not be 0");
  ByteCount size(RoundUp(bytes.value(), kPageBytes));
  absl::StatusOr<StagingMemory> made = memory->MakeStaging(size);
  // On a node with many sessions a smaller segment has to do.
  const std::string lacking(made.status().message());
  while (absl::IsResourceExhausted(made.status()) && size > kStagingBytesLeast) {
    size = std::max(kStagingBytesLeast, ByteCount(RoundUp(size.value() / 2, kPageBytes)));
    made = memory->MakeStaging(size);
  }
  LARDER_RETURN_IF_ERROR(made.status());
  const uint32_t id = made->id;
  absl::StatusOr<std::shared_ptr<StagingArea>> staging =
      StagingArea::Create(*std::move(made), lacking);
  if (!staging.ok()) {
    (void)memory->DropStaging(id);
    return staging.status();
  }
  staging_ = *std::move(staging);
  staging_memory_ = memory;
  return absl::OkStatus();
}

bool SessionCore::Close() {
  if (in_child()) return false;
  if (directives_ != nullptr) directives_->Stop();
  bool bye = status().ok();
  if (bye) {
    DropStock();
    bye = !book_.in_use();
    MutexLock lock(mu_);
    bye = bye && leases_.empty();  // leases in use stay until CLEAN or this process ends
  }
  bye = outbox_.Stop(bye);
  OnBroken(absl::UnavailableError("the session was closed"));
  calls_.StopPump();
  DropStaging();
  return bye;
}

void SessionCore::DropStaging() {
  // An error is ignored: the daemon drops the segment in any case when the sideband's connection
  // ends.
  const std::shared_ptr<SharedMemory> memory = std::exchange(staging_memory_, nullptr);
  if (memory != nullptr) (void)memory->DropStaging(staging_->id());
}

void SessionCore::OnBroken(const absl::Status& status) {
  std::shared_ptr<const RevocationWords> page;   // unmapped after the lock
  absl::flat_hash_map<uint64_t, LateRead> late;  // destroyed after the lock
  absl::Status told(absl::StatusCode::kUnavailable, status.message());
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return;
    status_ = told;
    if (std::exchange(counted_, false)) --*beside_;
    std::swap(page, page_);
    leases_.clear();
    late.swap(late_reads_);
  }
  calls_.FailAll(told);
  promises_.EndAll();
  slabs_.Drop();
  book_.SetStockLimit(ByteCount(0));
  std::vector<wire::Abort> void_now;
  (void)book_.Expire(TimePoint(), /*all=*/true, &void_now);
}

absl::Status SessionCore::status() const {
  if (in_child()) {
    return absl::FailedPreconditionError(
        "this process is a forked child of the process that attached: connect again in the child");
  }
  MutexLock lock(mu_);
  return status_;
}

// ---- messages down

void SessionCore::OnDown(wire::Down down) {
  for (wire::Registered& part : down.registered) {
    const uint64_t id = part.id;
    calls_.Deliver(id, std::move(part));
  }
  for (wire::Reserved& part : down.reserved) OnReserved(std::move(part));
  for (wire::Published& part : down.published) {
    const uint64_t id = part.id;
    calls_.Deliver(id, std::move(part));
  }
  for (wire::Promised& part : down.promised) {
    if (part.status == BlockStatus::kOk) promises_.Add(part);
    const uint64_t id = part.id;
    calls_.Deliver(id, std::move(part));
  }
  for (const wire::PromiseReady& part : down.promise_ready) promises_.OnReady(part);
  for (wire::Grant& part : down.grants) OnGrant(std::move(part));
  for (wire::BlockReady& part : down.ready) calls_.DeliverReady(std::move(part));
  for (const wire::BlockFailed& part : down.failed) {
    wire::BlockReady failed{.id = part.id, .key = part.key, .block = {}};
    failed.block.status = part.status;
    failed.block.extent.bytes = part.bytes;
    calls_.DeliverReady(std::move(failed));
  }
  for (const wire::Durable& part : down.durable)
    counters_.blocks_durable.fetch_add(part.digests.size(), std::memory_order_relaxed);
  for (const wire::Revocation& part : down.revocations) OnRevocation(part);
  for (wire::Directive& part : down.directives) {
    if (part.kind == wire::DirectiveKind::kDrain) {
      draining_.store(true, std::memory_order_relaxed);
    } else if (directives_ != nullptr) {
      directives_->Add(std::move(part));
    }
  }
}

void SessionCore::OnReserved(wire::Reserved reserved) {
  if (book_.OnReserved(reserved, SteadyNow())) {
    outbox_.Arm();  // from here on the stock needs chores
    return;
  }
  const bool granted = reserved.status == BlockStatus::kOk;
  if (granted &&
      (!reserved.reservation || !book_.Add(reserved.reservation, reserved.extents.size()))) {
    reserved.status =
        BlockStatus::kInvalid;  // an impossible reservation: nothing of it may be used
    reserved.extents.clear();
  }
  const uint64_t id = reserved.id;
  calls_.Deliver(id, std::move(reserved));
}

void SessionCore::OnGrant(wire::Grant grant) {
  if (grant.lease) {
    MutexLock lock(mu_);
    if (!leases_.emplace(grant.lease, false).second) {  // an impossible lease
      grant.lease = {};
      grant.blocks.clear();
    }
  }
  const uint64_t id = grant.id;
  calls_.Deliver(id, std::move(grant));
}

void SessionCore::OnRevocation(const wire::Revocation& revocation) {
  for (const LeaseId lease : revocation.leases) {
    if (promises_.OnEnded(lease)) continue;  // needs no acknowledgement
    {
      MutexLock lock(mu_);
      if (const auto found = leases_.find(lease); found != leases_.end()) {
        found->second = true;
        counters_.revoked.fetch_add(1, std::memory_order_relaxed);
        continue;  // acknowledged when its reader ends it
      }
    }
    outbox_.Acknowledge(lease);
  }
  for (const ReservationId reservation : revocation.reservations) {
    if (book_.Revoke(reservation)) outbox_.Acknowledge(reservation);
  }
}

void SessionCore::OnUnclaimed(Answer answer) {
  if (const auto* grant = std::get_if<wire::Grant>(&answer);
      grant != nullptr && !OnLateGrant(*grant) && grant->lease) {
    EndLease(grant->lease);
  }
  if (const auto* promised = std::get_if<wire::Promised>(&answer);
      promised != nullptr && promised->status == BlockStatus::kOk) {
    EndPromise(promised->promise);
  }
  if (const auto* ready = std::get_if<wire::BlockReady>(&answer)) OnLateReady(ready->id);
  if (const auto* published = std::get_if<wire::Published>(&answer)) {
    std::vector<StagingArea::Chunk> chunks;
    {
      MutexLock lock(mu_);
      if (const auto found = late_chunks_.find(published->id); found != late_chunks_.end()) {
        chunks = std::move(found->second);
        late_chunks_.erase(found);
      }
    }
    for (const StagingArea::Chunk& chunk : chunks) staging_->Free(chunk);
  }
  if (const auto* reserved = std::get_if<wire::Reserved>(&answer)) {
    for (uint32_t i = 0; i < reserved->extents.size(); ++i) {
      EndExtent({reserved->reservation, i, reserved->extents[i]}, /*abort=*/true);
    }
  }
}

void SessionCore::EndLater(OpenCall call, LateRead read) {
  if (in_child()) return;
  const uint64_t id = call.id();
  {
    MutexLock lock(mu_);
    if (!status_.ok()) return;  // no answer comes; the segment ends with the session
    late_reads_.emplace(id, std::move(read));
  }
  outbox_.Cancel(id);
  call = {};  // answers that the call did not take go to OnUnclaimed
}

bool SessionCore::OnLateGrant(const wire::Grant& grant) {
  {
    MutexLock lock(mu_);
    const auto found = late_reads_.find(grant.id);
    if (found == late_reads_.end()) return false;
    found->second.granted = true;
    found->second.lease = grant.lease;
    found->second.pending = static_cast<size_t>(std::ranges::count_if(
        grant.blocks, [](const auto& block) { return block.status == BlockStatus::kPending; }));
  }
  EndIfAnswered(grant.id);
  return true;
}

void SessionCore::OnLateReady(uint64_t id) {
  {
    MutexLock lock(mu_);
    const auto found = late_reads_.find(id);
    if (found == late_reads_.end() || found->second.pending == 0) return;
    --found->second.pending;
  }
  EndIfAnswered(id);
}

void SessionCore::EndIfAnswered(uint64_t id) {
  LateRead over;  // its part of the segment is freed without the lock
  {
    MutexLock lock(mu_);
    const auto found = late_reads_.find(id);
    if (found == late_reads_.end() || !found->second.granted || found->second.pending > 0) return;
    over = std::move(found->second);
    late_reads_.erase(found);
  }
  if (over.lease) EndLease(over.lease);
}

uint64_t SessionCore::LargestBlock(uint32_t variant) const {
  MutexLock lock(mu_);
  const auto found = largest_.find(variant);
  return found == largest_.end() ? 0 : found->second;
}

void SessionCore::NoteBlock(uint32_t variant, uint64_t bytes) {
  MutexLock lock(mu_);
  uint64_t& largest = largest_[variant];
  largest = std::max(largest, bytes);
}

void SessionCore::FreeWhenAnswered(uint64_t id, std::vector<StagingArea::Chunk> chunks) {
  MutexLock lock(mu_);
  late_chunks_.emplace(id, std::move(chunks));
}

// ---- leases and extents

bool SessionCore::Holds(LeaseId lease, uint32_t word) const {
  if (in_child()) return false;
  MutexLock lock(mu_);
  return page_ != nullptr && page_->Holds(word, lease.value);
}

void SessionCore::EndLease(LeaseId lease) {
  if (in_child()) return;
  bool revoked;
  {
    MutexLock lock(mu_);
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return;  // void since the stream was lost
    revoked = found->second;
    leases_.erase(found);
  }
  revoked ? outbox_.Acknowledge(lease) : outbox_.Release(lease);
}

void SessionCore::EndPromise(LeaseId promise) {
  if (in_child()) return;
  if (promises_.Remove(promise)) outbox_.Release(promise);
}

std::optional<HeldExtent> SessionCore::TakeStock(ByteCount bytes) {
  return book_.Take(bytes, SteadyNow());
}

void SessionCore::AskStock(ByteCount bytes, size_t wanted, wire::Up* up) {
  const uint64_t id = calls_.NextId();
  const TimePoint now = SteadyNow();
  std::vector<wire::Abort> aborts;
  const size_t count = book_.Ask(id, bytes, wanted, now, &aborts);
  for (wire::Abort& abort : aborts) outbox_.Add(std::move(abort));
  if (count == 0) return;
  const auto deadline =
      std::chrono::duration_cast<std::chrono::milliseconds>(ReservationBook::kStockDeadline);
  up->reserves.push_back({.id = id,
                          .bytes = std::vector<ByteCount>(count, bytes),
                          .deadline_ms = static_cast<uint32_t>(deadline.count())});
}

void SessionCore::DropStock() {
  std::vector<wire::Abort> aborts;
  (void)book_.Expire(TimePoint(), /*all=*/true, &aborts);
  for (wire::Abort& abort : aborts) outbox_.Add(std::move(abort));
}

void SessionCore::EndExtent(const HeldExtent& extent, bool abort) {
  if (in_child()) return;
  if (abort) outbox_.Add({extent.reservation, {extent.index}});
  if (book_.Leave(extent.reservation)) outbox_.Acknowledge(extent.reservation);
}

std::optional<TimePoint> SessionCore::Chores(TimePoint now) {
  std::vector<wire::Abort> aborts;
  const std::optional<TimePoint> expires = book_.Expire(now, /*all=*/false, &aborts);
  for (wire::Abort& abort : aborts) outbox_.Add(std::move(abort));
  const std::optional<TimePoint> looks = calls_.PumpIfIdle(now);
  return expires && looks ? std::min(*expires, *looks) : expires ? expires : looks;
}

}  // namespace larder
