// Reads again, slowly and for ever, what is on disk alone, so that a record that has gone bad is
// found before somebody waits for it: then its name goes, and the next who wants it computes it.
//
// One block at a time, held meanwhile, at a bounded rate; what HOST has too is passed over, since
// nobody reads its copy now.  A disk that fails is left alone for a while.
// Ownership: by the daemon or a test; store and tier outlive it.  Thread-safety: stats from
// any thread.
// Lifecycle: made (runs) -> destroyed (ends within one read).
// Limits: `bytes_per_s` of payloads on the average of a block, which counts as kChargedMin at
// least; kPieceBytes of memory, or a segment.
#pragma once

#include "storage/disk/disk_tier.h"
#include "storage/store/block_store.h"
#include "storage/tiering/verify_loop.h"

namespace larder {

class DiskVerifier {
 public:
  struct Options {
    ByteCount bytes_per_s = MiB(8);  // > 0
    // Between two walks, and after a failure.
    Duration pause = std::chrono::seconds(60);
  };
  static constexpr ByteCount kPieceBytes = MiB(8);
  // What a block counts as at least: small blocks are read some at once and seldom, since to wake
  // for one takes more of a processor than to read it.
  static constexpr ByteCount kChargedMin = KiB(512);

  DiskVerifier(const Options& options, BlockStore& store, DiskTier& tier);

  using Stats = VerifyLoop::Stats;
  [[nodiscard]] Stats stats() const { return loop_.stats(); }

  // Reads one block and checks it; what it read is added to *bytes.  Unknown is damaged.
  [[nodiscard]] static DiskTier::GetStatus Check(DiskTier& tier, const DiskAddress& block,
                                                 ByteCount* bytes);

 private:
  [[nodiscard]] VerifyLoop::Examined LookAt(const BlockIndex::View& view);

  BlockStore& store_;
  DiskTier& tier_;
  VerifyLoop loop_;
};

}  // namespace larder
