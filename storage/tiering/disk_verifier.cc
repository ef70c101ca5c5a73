#include "storage/tiering/disk_verifier.h"

#include <vector>

#include "storage/disk/page_buffer.h"
#include "storage/format/payload_cursor.h"

namespace larder {

DiskVerifier::DiskVerifier(const Options& options, BlockStore& store, DiskTier& tier)
    : store_(store),
      tier_(tier),
      loop_({.thread = "disk-verifier",
             .bytes_per_s = options.bytes_per_s,
             .charged_min = kChargedMin,
             .pause = options.pause},
            store.index(), [this](const BlockIndex::View& view) { return LookAt(view); }) {}

VerifyLoop::Examined DiskVerifier::LookAt(const BlockIndex::View& view) {
  VerifyLoop::Examined looked;
  if (view.state != BlockState::kDisk) return looked;
  const BlockIndex::Held held = store_.HoldUntouched(view.variant, view.digest);
  if (held.ref.value == 0) return looked;
  if (held.state == BlockState::kDisk) {
    const DiskTier::GetStatus status =
        Check(tier_,
              {.key = {store_.index().VariantId(view.variant), view.digest},
               .location = DiskLocation{held.disk_location}},
              &looked.bytes);
    if (status == DiskTier::GetStatus::kOk) {
      looked.outcome = VerifyLoop::Outcome::kOk;
    } else if (status == DiskTier::GetStatus::kFailed) {
      looked.outcome = VerifyLoop::Outcome::kFailed;
    } else if (store_.index().LookAt(held.ref).state == BlockState::kDisk) {
      looked.outcome = VerifyLoop::Outcome::kDamaged;  // the block was not promoted meanwhile
      store_.DropDamaged(held.ref, Tier::kDisk);
    }
  }
  store_.Unhold({&held.ref, 1});
  return looked;
}

// Reads the block in pieces of whole segments.
DiskTier::GetStatus DiskVerifier::Check(DiskTier& tier, const DiskAddress& block,
                                        ByteCount* bytes) {
  std::optional<DiskTier::Description> known;
  if (!tier.Describe({&block, 1}, {&known, 1}).ok()) return DiskTier::GetStatus::kFailed;
  if (!known) return DiskTier::GetStatus::kDamaged;
  const std::vector<Segment>& segments = known->header.table.segments;
  SegmentCursor at;
  for (uint32_t next = 0; next < segments.size();) {
    SegmentRange piece{.first = next, .count = 1, .begin = at.Next(segments[next].bytes)};
    piece.end = at.end();
    for (++next; next < segments.size(); ++next, ++piece.count) {
      SegmentCursor longer = at;
      (void)longer.Next(segments[next].bytes);
      if (longer.end() - piece.begin > kPieceBytes.value()) break;
      at = longer;
      piece.end = at.end();
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
