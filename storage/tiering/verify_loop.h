// Looks at every block of an index, one after the other and over and over, at a bounded rate: what
// DiskVerifier and HostVerifier have in common.
//
// It decides when the next block is looked at, and counts what came of it; what to look at, and
// how, is its owner's (`look`).  It holds no block and no lock while it sleeps.
// Ownership: a member of a verifier, the last one: its thread calls `look` until it is destroyed.
// Thread-safety: stats from any thread; `look` is called from the loop's thread.
// Lifecycle: made (runs) -> destroyed (ends within one look).
// Limits: `bytes_per_s` on the average; a block counts as `charged_min` at least, since each costs
// processor time however small it is.  What is owed is slept for kOwedMax at a time, since each
// wake-up costs, too.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "storage/clock.h"
#include "storage/index/block_index.h"
#include "storage/mutex.h"

namespace larder {

class VerifyLoop {
 public:
  struct Options {
    const char* thread = "";  // its name
    ByteCount bytes_per_s;    // > 0
    ByteCount charged_min;
    Duration pause{};  // between two walks, and after a failure
  };
  static constexpr Duration kOwedMax = std::chrono::seconds(1);

  enum class Outcome : uint8_t { kPassedOver, kOk, kDamaged, kFailed };
  struct Examined {
    Outcome outcome = Outcome::kPassedOver;
    ByteCount bytes;  // that were read
  };
  // The view is old by then, so whoever looks asks the index again.
  using Examine = std::function<Examined(const BlockIndex::View&)>;

  // REQUIRES: `index` outlives it.
  VerifyLoop(const Options& options, const BlockIndex& index, Examine examine);
  ~VerifyLoop();
  VerifyLoop(const VerifyLoop&) = delete;
  VerifyLoop& operator=(const VerifyLoop&) = delete;

  struct Stats {
    uint64_t walks = 0;  // that ended
    uint64_t blocks = 0, damaged = 0, failed = 0;
    ByteCount bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  void Walk() LARDER_EXCLUDES(mu_);
  void LookAt(const BlockIndex::View& view) LARDER_EXCLUDES(mu_);
  // False: it ends.
  [[nodiscard]] bool Sleep(Duration how_long) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool stopping() const LARDER_EXCLUDES(mu_);

  const Options options_;
  const BlockIndex& index_;
  const Examine examine_;
  Duration owed_{};  // the thread's: of sleep, for what it read since the last one
  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  Stats stats_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
