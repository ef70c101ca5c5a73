#include "storage/tiering/tier_worker.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/clock.h"
#include "storage/disk/disk_breaker.h"

namespace larder {

absl::Status DiskParts::CheckReady() const {
  if (work == nullptr)
    return absl::FailedPreconditionError("this daemon has no disk; start it with --disk");
  if (!work->recovering()) return absl::OkStatus();
  return absl::UnavailableError(
      "this daemon has just started and is still reading what is on its disk; try again later");
}

namespace {

// The first and the longest pause before unplaced blocks are offered to the store again.
constexpr Duration kRetryFirst = std::chrono::milliseconds(250);
constexpr Duration kRetryLongest = std::chrono::minutes(2);

}  // namespace

TierWorker::TierWorker(DiskTier& tier, BlockStore& store, const Clock& clock, size_t reader_threads,
                       ByteCount verify_rate, Spiller::Durable durable)
    : tier_(tier),
      store_(store),
      clock_(clock),
      spiller_({.paused = true}, store, tier, clock, std::move(durable)),
      promoter_(reader_threads, store, tier, clock),
      verify_rate_(verify_rate) {
  store.AskBeforeNaming(&tier);
}

TierWorker::~TierWorker() {
  {
    MutexLock lock(stop_mu_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  if (recovery_.joinable()) recovery_.join();
  store_.AskBeforeNaming(nullptr);
}

bool TierWorker::Promote(VariantIndex variant, std::span<const Digest> digests, Ready ready) {
  Promoter::Job job;
  job.variant = variant;
  std::vector<EntryRef> held;
  // For each block to read, by EntryRef::value: the first index in `digests` that names the block.
  absl::flat_hash_map<uint32_t, size_t> reading;
  // The further indices in `digests` that name the same block, by the first index.
  auto others = std::make_shared<absl::flat_hash_map<size_t, std::vector<size_t>>>();
  std::vector<std::pair<size_t, BlockStatus>> known;
  for (size_t i = 0; i < digests.size(); ++i) {
    const BlockIndex::Held block = store_.HoldUntouched(variant, digests[i]);
    if (block.ref == EntryRef{}) {
      known.emplace_back(i, BlockStatus::kMissing);
      continue;
    }
    if (const auto first = reading.find(block.ref.value); first != reading.end()) {
      store_.Unhold({&block.ref, 1});
      (*others)[first->second].push_back(i);
      continue;
    }
    held.push_back(block.ref);
    if (OnDiskAlone(block.state)) {
      reading.emplace(block.ref.value, i);
      job.blocks.push_back({i, block.ref, digests[i], block.disk_location, block.extent.bytes()});
    } else {
      known.emplace_back(i, BlockStatus::kOk);
    }
  }
  bool taken = true;
  if (!job.blocks.empty()) {
    job.ready = [ready, others](const Promoter::Wanted& block, BlockStatus status,
                                const BlockIndex::Held&) {
      ready(block.key, status);
      const auto more = others->find(block.key);
      if (more == others->end()) return;
      for (const size_t i : more->second) ready(i, status);
    };
    Promoter::Prepared prepared = promoter_.Prepare(std::move(job));
    taken = prepared != nullptr;
    if (taken) promoter_.Submit(std::move(prepared));
  }
  store_.Unhold(held);
  if (!taken) return false;
  for (const auto& [i, status] : known) ready(i, status);
  return true;
}

void TierWorker::StartRecovery(Done done) {
  recovery_ = std::thread([this, done = std::move(done)] {
    pthread_setname_np(pthread_self(), "disk-recovery");
    Recover(done);
  });
}

void TierWorker::Recover(const Done& done) {
  const TimePoint start = clock_.Now();
  absl::Status status = RecoverOnce();
  done(status, recovered_, clock_.Now() - start);
  if (absl::IsCancelled(status)) return;
  all_known_ = !absl::IsUnavailable(status) && tier_.stats().unplaced == 0;
  // While there are unplaced blocks, the store must ask the disk before it names a new block,
  // because the new block may have the name of an unplaced one.  A part of the disk that failed is
  // no reason to ask, since callers would wait for a part that is slow to fail.  If such a part
  // reports a block later, Join compares it with the block of the same name in the pool.
  StopAskingWhereAllIsPlaced();
  recovering_ = false;
  spiller_.Resume();
  spiller_.Nudge();
  if (verify_rate_.value() > 0) {
    MutexLock lock(verifier_mu_);
    verifier_.emplace(DiskVerifier::Options{.bytes_per_s = verify_rate_}, store_, tier_);
  }
  if (!absl::IsUnavailable(status)) return TellUnplaced();
  DiskBreaker rest;
  do {
    rest.Failed(clock_.Now());
    if (!SleepUntil(rest.until())) return;
    // The store asks the disk again: a part of the disk that opens now may have blocks that the
    // store cannot take at once, or may report them slowly.
    store_.AskBeforeNaming(&tier_);
    status = RecoverOnce();
    StopAskingWhereAllIsPlaced();
  } while (absl::IsUnavailable(status));
  all_known_ = !absl::IsCancelled(status) && tier_.stats().unplaced == 0;
  done(status, recovered_, clock_.Now() - start);
  TellUnplaced();
}

// A block may stay unplaced for long, for example while the index is full or the pool has a block
// of the same name, so the pauses grow.
void TierWorker::TellUnplaced() {
  for (Duration pause = kRetryFirst; tier_.stats().unplaced > 0;
       pause = std::min(2 * pause, kRetryLongest)) {
    if (!SleepUntil(SteadyNow() + pause)) return;
    if (absl::IsCancelled(RecoverOnce())) return;
  }
  store_.AskBeforeNaming(nullptr);
  all_known_ = true;
}

void TierWorker::StopAskingWhereAllIsPlaced() {
  if (tier_.stats().unplaced == 0) store_.AskBeforeNaming(nullptr);
}

absl::Status TierWorker::RecoverOnce() {
  const uint64_t before = recovered_;
  const absl::Status status = tier_.Recover(
      [this](const DiskTier::Entry& entry) {
        const EntryRef ref = Place(entry);
        recovered_ += ref == EntryRef{} || ref == BlockStore::kNotNow ? 0 : 1;
        static_assert(BlockStore::kNotNow.value == DiskTier::kUnplaced);
        return ref.value;
      },
      [this] { return stop_.load(); });
  if (recovered_ > before) store_.index().CountChildren([this] { return stop_.load(); });
  return status;
}

EntryRef TierWorker::Enter(const DiskTier::Entry& entry, EntryRef same) {
  return store_.EnterFromDisk(entry.key.variant, entry.key.digest, entry.parent,
                              static_cast<uint64_t>(entry.location), entry.raw_pages, same);
}

EntryRef TierWorker::Place(const DiskTier::Entry& entry) {
  const EntryRef ref = Enter(entry, {});
  if (ref != BlockStore::kNotNow) return ref;
  const std::optional<VariantIndex> variant = store_.index().FindVariant(entry.key.variant);
  if (!variant) return ref;
  const BlockIndex::Held held = store_.HoldUntouched(*variant, entry.key.digest);
  if (held.ref == EntryRef{}) return ref;
  const EntryRef joined = InHost(held.state) ? Join(entry, held) : ref;
  store_.Unhold({&held.ref, 1});
  return joined;
}

// No engine can have read the record since the start, but engines may have read the block in the
// pool.  So the name stays with the bytes in the pool, as long as they match their hashes.
EntryRef TierWorker::Join(const DiskTier::Entry& entry, const BlockIndex::Held& held) {
  if (held.metadata == nullptr) return BlockStore::kNotNow;
  const DiskAddress address{.key = entry.key, .location = entry.location};
  std::optional<DiskTier::Description> known;
  if (!tier_.Describe({&address, 1}, {&known, 1}).ok()) return BlockStore::kNotNow;
  if (!known) return {};  // its description is damaged
  const SegmentRange all{0, held.metadata->segment_count(), 0,
                         held.metadata->payload_bytes().value()};
  if (!store_.Check(held, all)) {
    store_.DropDamaged(held.ref);
    return Enter(entry, {});
  }
  const SegmentTable table = held.metadata->Table();
  if (known->header.table == table) return Enter(entry, held.ref);
  // If the record or the block in HOST is encoded, their decoded bytes may be equal or not.  An
  // earlier daemon may have reported the record as durable, so the record stays, unplaced.
  return known->header.table.encoded() || table.encoded() ? BlockStore::kNotNow : EntryRef{};
}

bool TierWorker::SleepUntil(TimePoint until) {
  MutexLock lock(stop_mu_);
  while (!stop_ && stopped_.WaitUntil(stop_mu_, until)) {
  }
  return !stop_;
}

void TierWorker::Tick() {
  if (store_.has_freed_extents()) spiller_.Nudge();
}

TierWorker::Stats TierWorker::stats() const {
  MutexLock lock(verifier_mu_);
  return {.tier = tier_.stats(),
          .spiller = spiller_.stats(),
          .promoter = promoter_.stats(),
          .verifier = verifier_ ? verifier_->stats() : DiskVerifier::Stats{},
          .recovered_blocks = recovered_,
          .recovering = recovering_};
}

}  // namespace larder
