#include "server/disk_work.h"

#include <pthread.h>

#include <utility>
#include <vector>

#include "storage/disk/disk_breaker.h"

namespace larder {

absl::Status DiskParts::CheckReady() const {
  if (work == nullptr)
    return absl::FailedPreconditionError("this daemon has no disk; start it with --disk");
  if (!work->recovering()) return absl::OkStatus();
  return absl::UnavailableError(
      "this daemon has just started and still finds out what is on its disk; try again");
}

DiskWork::DiskWork(DiskTier& tier, BlockStore& store, const Clock& clock, size_t reader_threads,
                   ByteCount verify_rate, Spiller::Durable durable)
    : tier_(tier),
      store_(store),
      clock_(clock),
      spiller_({.paused = true}, store, tier, clock, std::move(durable)),
      promoter_(reader_threads, store, tier, clock),
      verify_rate_(verify_rate) {}

DiskWork::~DiskWork() {
  {
    MutexLock lock(stop_mu_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  if (recovery_.joinable()) recovery_.join();
}

bool DiskWork::Promote(VariantIndex variant, std::span<const Digest> digests, Ready ready) {
  Promoter::Job job;
  job.variant = variant;
  std::vector<EntryRef> held;
  std::vector<std::pair<size_t, BlockStatus>> known;
  for (size_t i = 0; i < digests.size(); ++i) {
    const BlockIndex::Held block = store_.HoldUntouched(variant, digests[i]);
    if (block.ref == EntryRef{}) {
      known.emplace_back(i, BlockStatus::kMissing);
      continue;
    }
    held.push_back(block.ref);
    if (OnDiskAlone(block.state)) {
      job.blocks.push_back({i, block.ref, digests[i], block.disk_location, block.extent.bytes()});
    } else {
      known.emplace_back(i, BlockStatus::kOk);
    }
  }
  bool taken = true;
  if (!job.blocks.empty()) {
    job.ready = [ready](const Promoter::Wanted& block, BlockStatus status,
                        const BlockIndex::Held&) { ready(block.key, status); };
    Promoter::Prepared prepared = promoter_.Prepare(std::move(job));
    taken = prepared != nullptr;
    if (taken) promoter_.Submit(std::move(prepared));
  }
  store_.Unhold(held);
  if (!taken) return false;
  for (const auto& [i, status] : known) ready(i, status);
  return true;
}

void DiskWork::StartRecovery(Done done) {
  recovery_ = std::thread([this, done = std::move(done)] {
    pthread_setname_np(pthread_self(), "disk-recovery");
    Recover(done);
  });
}

void DiskWork::Recover(const Done& done) {
  const TimePoint start = clock_.Now();
  absl::Status status = RecoverOnce();
  done(status, recovered_, clock_.Now() - start);
  if (absl::IsCancelled(status)) return;
  all_known_ = !absl::IsUnavailable(status);
  recovering_ = false;
  spiller_.Resume();
  spiller_.Nudge();
  if (verify_rate_.value() > 0) {
    MutexLock lock(verifier_mu_);
    verifier_.emplace(DiskVerifier::Options{.bytes_per_s = verify_rate_}, store_, tier_);
  }
  if (!absl::IsUnavailable(status)) return;
  DiskBreaker rest;
  do {
    rest.Failed(clock_.Now());
    if (!SleepUntil(rest.until())) return;
    status = RecoverOnce();
  } while (absl::IsUnavailable(status));
  all_known_ = !absl::IsCancelled(status);
  done(status, recovered_, clock_.Now() - start);
}

absl::Status DiskWork::RecoverOnce() {
  const uint64_t before = recovered_;
  const absl::Status status = tier_.Recover(
      [this](const DiskTier::Entry& entry) {
        const EntryRef ref =
            store_.EnterFromDisk(entry.key.variant, entry.key.digest, entry.parent,
                                 static_cast<uint64_t>(entry.location), entry.raw_pages);
        recovered_ += ref.value != 0 ? 1 : 0;
        return ref.value;
      },
      [this] { return stop_.load(); });
  if (recovered_ > before) store_.index().CountChildren([this] { return stop_.load(); });
  return status;
}

bool DiskWork::SleepUntil(TimePoint until) {
  MutexLock lock(stop_mu_);
  while (!stop_ && stopped_.WaitUntil(stop_mu_, until)) {
  }
  return !stop_;
}

void DiskWork::Tick() {
  if (store_.has_disk_rooms()) spiller_.Nudge();
}

DiskWork::Stats DiskWork::stats() const {
  MutexLock lock(verifier_mu_);
  return {.tier = tier_.stats(),
          .spiller = spiller_.stats(),
          .promoter = promoter_.stats(),
          .verifier = verifier_ ? verifier_->stats() : DiskVerifier::Stats{},
          .recovered_blocks = recovered_,
          .recovering = recovering_};
}

}  // namespace larder
