// Reads the blocks that are only on disk, slowly and again and again, to find damaged records
// before an engine waits for them.  It drops a damaged block if the block is still only on disk.
//
// The verifier reads one block at a time, and holds the block meanwhile.  After a failure of the
// disk the verifier pauses.
// Ownership: the daemon or a test; store and tier outlive it.  Thread-safety: stats from any
// thread.
// Lifecycle: made (runs) -> destroyed (the thread ends after the block that it is reading).
// Limits: about `bytes_per_s` of payloads at most, on average; about kPieceBytes of memory, or one
// segment if that is larger.
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
  // An undamaged block counts as at least this many bytes, since each block costs processor time
  // however small it is.
  static constexpr ByteCount kChargedMin = KiB(512);

  DiskVerifier(const Options& options, BlockStore& store, DiskTier& tier);

  using Stats = VerifyLoop::Stats;
  [[nodiscard]] Stats stats() const { return loop_.stats(); }

  // Reads and checks one block in pieces of whole segments until a piece fails, and adds the size
  // of each good piece to *bytes.  Returns kDamaged also if the tier has no description of the
  // block.
  [[nodiscard]] static DiskTier::GetStatus Check(DiskTier& tier, const DiskAddress& block,
                                                 ByteCount* bytes);

 private:
  [[nodiscard]] VerifyLoop::Examined LookAt(const BlockIndex::View& view);

  BlockStore& store_;
  DiskTier& tier_;
  VerifyLoop loop_;
};

}  // namespace larder
