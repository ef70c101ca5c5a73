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

#include <cstdint>
#include <thread>

#include "storage/block_store.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"

namespace larder {

class DiskVerifier {
 public:
  struct Options {
    ByteCount bytes_per_s = MiB(8);  // > 0
    // Between two walks, and after a failure.
    Duration pause = std::chrono::seconds(60);
  };
  static constexpr ByteCount kPieceBytes = MiB(8);
  // What a block counts as at least, and how long it may be owed: small blocks are read some at
  // once and seldom, since to wake for one takes more of a processor than to read it.
  static constexpr ByteCount kChargedMin = KiB(512);
  static constexpr Duration kOwedMax = std::chrono::seconds(1);

  DiskVerifier(const Options& options, BlockStore& store, DiskTier& tier);
  ~DiskVerifier();
  DiskVerifier(const DiskVerifier&) = delete;
  DiskVerifier& operator=(const DiskVerifier&) = delete;

  struct Stats {
    uint64_t walks = 0;  // that ended
    uint64_t blocks = 0, damaged = 0, failed = 0;
    ByteCount bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

  // Reads one block and checks it; what it read is added to *bytes.  Unknown is damaged.
  [[nodiscard]] static DiskTier::GetStatus Check(DiskTier& tier, const DiskAddress& block,
                                                 ByteCount* bytes);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  void Walk() LARDER_EXCLUDES(mu_);
  void VerifyOne(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  // False: it ends.
  [[nodiscard]] bool Sleep(Duration how_long) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool stopping() const LARDER_EXCLUDES(mu_);

  const Options options_;
  BlockStore& store_;
  DiskTier& tier_;
  Duration owed_{};  // the thread's: of sleep, for what it read since the last one
  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  Stats stats_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
