// Reads the blocks of the pool again, slowly and forever, to find a flipped bit, or a stray write
// of a process that maps the pool, before an engine waits for that block.  A damaged block leaves
// the pool, unless its disk copy is just being rewritten; a later walk then finds the damage again.
// If the block is on disk too, the next reader gets the disk copy; otherwise its name is dropped,
// and the next engine that wants the block computes it.
//
// The verifier looks at one block at a time, and holds the block while it hashes it.  This hold
// does not count as a use, so no block stays in the pool because it is verified.  A block that has
// no hashes yet, because its writer left hashing to the daemon, is hashed at the first look, which
// finds no damage.  The stored bytes of encoded segments are compared, without decoding.
// The verifier neither repairs a block in the pool nor reads the disk: damage to a disk copy is
// found when the copy is read.
// Ownership: the daemon or a test; the store outlives it.  Thread-safety: stats from any thread.
// Lifecycle: made (runs) -> destroyed (the thread ends after the block that it is checking).
// Limits: on average `bytes_per_s` of payloads; a block counts as at least kChargedMin.
// Cost: one pass of xxh3 over cold memory, 0.2 % of a core at 16 MiB/s.
#pragma once

#include <functional>
#include <string>

#include "storage/store/block_store.h"
#include "storage/tiering/verify_loop.h"

namespace larder {

class HostVerifier {
 public:
  struct Options {
    ByteCount bytes_per_s = MiB(16);            // > 0
    Duration pause = std::chrono::seconds(20);  // between two walks
    // Called from the verifier's thread for each damaged block, with one sentence.
    std::function<void(const std::string&)> warn = {};
  };
  static constexpr ByteCount kChargedMin = KiB(64);

  // Returns the time within which damage is found to a block that stays in the pool, if the pool
  // has `stored` bytes in `blocks` blocks: one walk, one pause, and the time by which a walk may
  // lag behind its rate.  At 16 MiB/s this is 9 minutes for 8 GiB in large blocks, and 70 minutes
  // for a million blocks of 4 KiB.
  [[nodiscard]] static Duration FindsWithin(const Options& options, ByteCount stored,
                                            uint64_t blocks);

  HostVerifier(const Options& options, BlockStore& store);

  // Returns FindsWithin for the bytes and blocks that the pool has now.
  [[nodiscard]] Duration FindsWithinNow() const;

  using Stats = VerifyLoop::Stats;
  [[nodiscard]] Stats stats() const { return loop_.stats(); }

 private:
  [[nodiscard]] VerifyLoop::Examined LookAt(const BlockIndex::View& view);

  const Options options_;
  BlockStore& store_;
  VerifyLoop loop_;
};

}  // namespace larder
