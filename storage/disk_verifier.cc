#include "storage/disk_verifier.h"

#include <pthread.h>

#include <algorithm>
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
    if (view.state == BlockState::kDisk && !stopping()) VerifyOne(view);
  });
  MutexLock lock(mu_);
  if (!stop_) ++stats_.walks;
}

void DiskVerifier::VerifyOne(const BlockIndex::View& view) {
  const DiskAddress block{.key = {store_.index().VariantId(view.variant), view.digest},
                          .location = DiskLocation{view.disk_location}};
  ByteCount bytes;
  const DiskTier::GetStatus status = Read(block, &bytes);
  const bool failed = status == DiskTier::GetStatus::kFailed;
  const bool damaged = !failed && status != DiskTier::GetStatus::kOk && DropIfBad(view, block);
  {
    MutexLock lock(mu_);
    stats_.bytes += bytes;
    stats_.blocks += status == DiskTier::GetStatus::kOk ? 1 : 0;
    stats_.damaged += damaged ? 1 : 0;
    stats_.failed += failed ? 1 : 0;
  }
  const std::chrono::duration<double> pace(static_cast<double>(bytes.value()) /
                                           static_cast<double>(options_.bytes_per_s.value()));
  (void)Sleep(failed ? options_.pause : std::chrono::duration_cast<Duration>(pace));
}

bool DiskVerifier::DropIfBad(const BlockIndex::View& view, const DiskAddress& block) {
  const BlockIndex::Held held =
      store_.HoldUntouched(view.variant, view.digest, HoldWhat::kAnyTierUntouched);
  if (held.ref.value == 0) return false;
  ByteCount bytes;
  const bool same = held.state == BlockState::kDisk && held.disk_location == view.disk_location;
  const DiskTier::GetStatus status = same ? Read(block, &bytes) : DiskTier::GetStatus::kOk;
  const bool bad =
      status == DiskTier::GetStatus::kDamaged || status == DiskTier::GetStatus::kMissing;
  if (bad) store_.DropDamaged(held.ref);
  store_.Unhold({&held.ref, 1});
  return bad;
}

// In pieces of whole segments; a block of one piece is read with its record's header.
DiskTier::GetStatus DiskVerifier::Read(const DiskAddress& block, ByteCount* bytes) {
  std::optional<DiskTier::Description> known;
  if (!tier_.Describe({&block, 1}, {&known, 1}).ok()) return DiskTier::GetStatus::kFailed;
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
        tier_.Get({.block = block, .header = &known->header, .range = piece, .to = to.bytes()});
    if (status != DiskTier::GetStatus::kOk) return status;
    *bytes += ByteCount(piece.end - piece.begin);
  }
  return DiskTier::GetStatus::kOk;
}

}  // namespace larder
