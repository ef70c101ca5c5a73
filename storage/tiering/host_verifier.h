// Reads again, slowly and for ever, the blocks of the pool, so that a bit that flipped there, or a
// stray write of a process that maps it, is found before an engine waits for that block: then it
// leaves the pool.  One that is on disk, too, is read from there when it is wanted next; of another
// the name goes, and the next engine that wants it computes it.
//
// One block at a time, held for the time that its hash takes and untouched: that is no use of it,
// so nothing stays in the pool for being verified.  A block whose writer left hashing to the daemon
// is hashed at the first look, and compared from the second on.  What is encoded is compared as it
// lies.
// It does not repair what lies in the pool, nor does it touch the disk: that its copy is whole is
// found when it is read.
// Ownership: by the daemon or a test; the store outlives it.  Thread-safety: stats from any thread.
// Lifecycle: made (runs) -> destroyed (ends within one block).
// Limits: `bytes_per_s` of payloads on the average; a block counts as kChargedMin at least.
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
    // Hears of each block that is damaged, in one sentence; from the verifier's thread.
    std::function<void(const std::string&)> warn = {};
  };
  static constexpr ByteCount kChargedMin = KiB(64);

  // Damage of a block that stays in the pool is found within this time, where the pool has so many
  // blocks of so many bytes: one walk and a pause, and what a walk may be behind its rate.
  // 8 GiB at 16 MiB/s: 9 minutes; a million blocks of a few KiB: 66.
  [[nodiscard]] static Duration FindsWithin(const Options& options, ByteCount stored,
                                            uint64_t blocks);

  HostVerifier(const Options& options, BlockStore& store);

  // Of what the store has now.
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
