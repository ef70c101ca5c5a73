// Visits the blocks of an index, one after the other and again and again, at a bounded rate.
// DiskVerifier and HostVerifier use it.
//
// The loop decides when the next block is examined, and counts the results.  The function
// `examine`, which its owner passes, decides whether and how to check the block.  The loop holds no
// block and no lock while it sleeps.
// Ownership: the last member of a verifier, since the loop calls `examine` until it is destroyed.
// Thread-safety: stats from any thread; `examine` is called from the loop's thread.
// Lifecycle: made (runs) -> destroyed (waits for the thread).
// Limits: about `bytes_per_s` at most, on average; a block smaller than `charged_min` usually
// counts as `charged_min`, since each block costs processor time however small it is.  The loop
// adds up the sleep that keeps the rate, and sleeps only once that is kOwedMax or more.
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
    const char* thread = "";  // the thread's name
    ByteCount bytes_per_s;    // > 0
    ByteCount charged_min;
    Duration pause{};  // between two walks, and after a failure
  };
  static constexpr Duration kOwedMax = std::chrono::seconds(1);

  enum class Outcome : uint8_t { kPassedOver, kOk, kDamaged, kFailed };
  struct Examined {
    Outcome outcome = Outcome::kPassedOver;
    ByteCount bytes;  // the bytes that were read
  };
  // Examines one block.  The view may be outdated, so the function must ask the index again.
  using Examine = std::function<Examined(const BlockIndex::View&)>;

  // REQUIRES: `index` outlives the loop.
  VerifyLoop(const Options& options, const BlockIndex& index, Examine examine);
  ~VerifyLoop();
  VerifyLoop(const VerifyLoop&) = delete;
  VerifyLoop& operator=(const VerifyLoop&) = delete;

  struct Stats {
    uint64_t walks = 0;  // complete walks
    uint64_t blocks = 0, damaged = 0, failed = 0;
    ByteCount bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  void Walk() LARDER_EXCLUDES(mu_);
  void LookAt(const BlockIndex::View& view) LARDER_EXCLUDES(mu_);
  // Returns false if the loop is being destroyed.
  [[nodiscard]] bool Sleep(Duration how_long) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool stopping() const LARDER_EXCLUDES(mu_);

  const Options options_;
  const BlockIndex& index_;
  const Examine examine_;
  // Used only by the loop's thread: how long it must still sleep to keep the rate.
  Duration owed_{};
  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  Stats stats_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
