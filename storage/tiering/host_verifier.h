// Reads the blocks of the pool, slowly and again and again, to find a flipped bit or a stray write
// of a process that maps the pool.  For a damaged block it calls BlockStore::DropDamaged.
//
// The verifier holds one block at a time, while it hashes that block; this does not count as a use.
// A block that has no hashes yet is hashed at the first look, which finds no damage.  Encoded
// segments are checked without decoding them.
// Ownership: the daemon or a test; the store outlives it.  Thread-safety: stats from any thread.
// Lifecycle: made (runs) -> destroyed (the thread ends after the block that it is checking).
// Limits: about `bytes_per_s` of payloads at most, on average; a block that it hashes counts as at
// least kChargedMin.
// Cost: about 0.2 % of a core at 16 MiB/s of large blocks.
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
    // Called from the verifier's thread when it finds a damaged block.
    std::function<void(const std::string&)> warn = {};
  };
  static constexpr ByteCount kChargedMin = KiB(64);

  // Returns about how long it takes at worst to find damage to a block that stays in the pool, if
  // the pool has `stored` bytes in `blocks` blocks.  With the default options this is about 9
  // minutes for 8 GiB in large blocks, and 70 minutes for a million blocks of 4 KiB.
  [[nodiscard]] static Duration FindsWithin(const Options& options, ByteCount stored,
                                            uint64_t blocks);

  HostVerifier(const Options& options, BlockStore& store);

  // Returns FindsWithin for what the pool has now.
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
