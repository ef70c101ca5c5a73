// Reads the blocks that are only on disk again, slowly and forever, so that a damaged record is
// found before an engine waits for it.  The name of a damaged block is dropped, and the next engine
// that wants it computes it.
//
// The verifier reads one block at a time, at a bounded rate, and holds it meanwhile.  It skips
// blocks that are in HOST too, since no reader uses their disk copies now.  After a failure of the
// disk it pauses.
// Ownership: the daemon or a test; store and tier outlive it.  Thread-safety: stats from any
// thread.
// Lifecycle: made (runs) -> destroyed (the thread ends after the block that it is reading).
// Limits: on average `bytes_per_s` of payloads, where a block counts as at least kChargedMin; about
// kPieceBytes of memory, or one segment if that is larger.
#pragma once

#include "storage/disk/disk_tier.h"
#include "storage/store/block_store.h"
#include "storage/tiering/verify_loop.h"

namespace larder {

class DiskVerifier {
 public:
  struct Options {
    ByteCount bytes_per_s = MiB(8);  // > 0
    // The pause between two walks, and after a failure.
    Duration pause = std::chrono::seconds(60);
  };
  static constexpr ByteCount kPieceBytes = MiB(8);
  // A block counts as at least this many bytes, which limits how many small blocks are read per
  // second (16 at 8 MiB/s), since each block costs processor time however small it is.
  static constexpr ByteCount kChargedMin = KiB(512);

  DiskVerifier(const Options& options, BlockStore& store, DiskTier& tier);

  using Stats = VerifyLoop::Stats;
  [[nodiscard]] Stats stats() const { return loop_.stats(); }

  // Reads and checks one block, and adds the bytes that it found undamaged to *bytes.  Returns
  // kDamaged also if the tier does not know the block.
  [[nodiscard]] static DiskTier::GetStatus Check(DiskTier& tier, const DiskAddress& block,
                                                 ByteCount* bytes);

 private:
  [[nodiscard]] VerifyLoop::Examined LookAt(const BlockIndex::View& view);

  BlockStore& store_;
  DiskTier& tier_;
  VerifyLoop loop_;
};

}  // namespace larder
