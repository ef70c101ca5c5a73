#include "storage/disk_verifier.h"

#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "storage/check.h"
#include "storage/disk/page_buffer.h"

namespace larder {

DiskVerifier::DiskVerifier(const Options& options, BlockStore& store, DiskTier& tier)
    : options_(options), store_(store), tier_(tier), thread_([this] { Run(); }) {
  LARDER_CHECK(options.bytes_per_s.value() > 0);
}

DiskVerifier::~DiskVerifier() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

DiskVerifier::Stats DiskVerifier::stats() const {
  MutexLock lock(mu_);
  return stats_;
}

bool DiskVerifier::stopping() const {
  MutexLock lock(mu_);
  return stop_;
}

bool DiskVerifier::Sleep(Duration how_long) {
  const TimePoint until = std::chrono::steady_clock::now() + how_long;
  MutexLock lock(mu_);
  while (!stop_ && wake_.WaitUntil(mu_, until)) {
  }
  return !stop_;
}

void DiskVerifier::Run() {
  pthread_setname_np(pthread_self(), "disk-verifier");
  do {
    Walk();
  } while (Sleep(options_.pause));
}

void DiskVerifier::Walk() {
  store_.index().ForEach([this](const BlockIndex::View& view) {
    if (view.state == BlockState::kDisk && !stopping()) VerifyOne(view.variant, view.digest);
  });
  MutexLock lock(mu_);
  if (!stop_) ++stats_.walks;
}

// The view is old by now, so the block is looked up again.
void DiskVerifier::VerifyOne(VariantIndex variant, const Digest& digest) {
  const BlockIndex::Held held = store_.HoldUntouched(variant, digest);
  if (held.ref.value == 0) return;
  ByteCount bytes;
  auto status = DiskTier::GetStatus::kOk;
  if (held.state == BlockState::kDisk) {
    status = Check(tier_,
                   {.key = {store_.index().VariantId(variant), digest},
                    .location = DiskLocation{held.disk_location}},
                   &bytes);
  }
  const bool failed = status == DiskTier::GetStatus::kFailed;
  // What has been published again meanwhile is good.
  const bool damaged = status != DiskTier::GetStatus::kOk && !failed &&
                       store_.index().LookAt(held.ref).state == BlockState::kDisk;
  if (damaged) store_.DropDamaged(held.ref, Tier::kDisk);
  store_.Unhold({&held.ref, 1});
  {
    MutexLock lock(mu_);
    stats_.bytes += bytes;
    stats_.blocks += bytes.value() > 0 && !damaged && !failed ? 1 : 0;
    stats_.damaged += damaged ? 1 : 0;
    stats_.failed += failed ? 1 : 0;
  }
  const ByteCount charged = bytes == ByteCount(0) ? bytes : std::max(bytes, kChargedMin);
  const std::chrono::duration<double> pace(static_cast<double>(charged.value()) /
                                           static_cast<double>(options_.bytes_per_s.value()));
  owed_ += std::chrono::duration_cast<Duration>(pace);
  if (!failed && owed_ < kOwedMax) return;
  const Duration owed = std::exchange(owed_, Duration::zero());
  (void)Sleep(failed ? options_.pause : owed);
}

// In pieces of whole segments; a block of one piece is read with its record's header.
DiskTier::GetStatus DiskVerifier::Check(DiskTier& tier, const DiskAddress& block,
                                        ByteCount* bytes) {
  std::optional<DiskTier::Description> known;
  if (!tier.Describe({&block, 1}, {&known, 1}).ok()) return DiskTier::GetStatus::kFailed;
  if (!known) return DiskTier::GetStatus::kDamaged;
  const std::vector<Segment>& segments = known->header.table.segments;
  uint64_t at = 0;
  for (uint32_t next = 0; next < segments.size();) {
    SegmentRange piece{next, 0, at, at};
    for (; next < segments.size(); ++next) {
      const uint64_t end = at + segments[next].bytes;
      if (piece.count > 0 && end - piece.begin > kPieceBytes.value()) break;
      piece.end = end;
      ++piece.count;
      at = RoundUp(end, kSegmentAlign);
    }
    const PageBuffer to(PagesFor(DiskTier::PagesOf(piece)));
    const DiskTier::GetStatus status =
        tier.Get({.block = block, .header = &known->header, .range = piece, .to = to.bytes()});
    if (status != DiskTier::GetStatus::kOk) return status;
    *bytes += ByteCount(piece.end - piece.begin);
  }
  return DiskTier::GetStatus::kOk;
}

}  // namespace larder
