// Pins and prefetches as their callers want them: on disk, so that they outlive the daemon; until
// their deadline; and with each block brought into the tier that it is pinned in.
//
// What counts is BlockStore::pins().  A pin is a fact of the disk tier under
// "pin/" VARIANT DIGEST TIER OWNER, whose value is its deadline (docs/format.md).  A prefetch is a
// pin of HOST that nobody owns, and that no disk remembers.
// Ownership: made by Daemon; store, disk and counters outlive it, jobs of the promoter may outlive
// it.
// Thread-safety: all methods from any thread.  Pin and Unpin do not wait for the disk: a thread of
// its own writes what all of them want at once, and answers.
// Lifecycle: made -> Load -> the disk's recovery -> ... -> destroyed (answers what waits).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/counters.h"
#include "server/disk_work.h"
#include "storage/block_store.h"
#include "storage/clock.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"

namespace larder {

class PinKeeper {
 public:
  static constexpr size_t kOwnerBytesMax = 256;
  // Blocks on their way into their tier at once, beside those of the calls that just came.
  static constexpr size_t kBroughtAtOnce = 1024;

  // The disk to bring blocks from and to; both null where there is none.
  struct Disk {
    DiskTier* tier = nullptr;
    DiskWork* work = nullptr;
  };
  using WallClock = std::function<uint64_t()>;  // milliseconds since 1970
  PinKeeper(BlockStore& store, Disk disk, Counters& counters, WallClock now_ms);
  ~PinKeeper();
  PinKeeper(const PinKeeper&) = delete;
  PinKeeper& operator=(const PinKeeper&) = delete;

  // What a former process left; how many pins.
  size_t Load();
  [[nodiscard]] bool durable() const { return disk_.tier != nullptr; }
  [[nodiscard]] uint64_t DeadlineIn(std::chrono::milliseconds ttl) const {
    return now_ms_() + static_cast<uint64_t>(ttl.count());
  }

  // OK when all that the call changed is on disk, at once where there is none; else the disk's
  // error: it is so until this process ends, and may be asked for again.  Each block's answer
  // beside it.  Called once, from this thread or the keeper's.
  using Answer = std::function<void(const absl::Status&, std::vector<BlockStatus>)>;
  // Of each key, as BlockPins::Add says.  REQUIRES: owner of 1 to kOwnerBytesMax bytes.
  void Pin(std::string_view owner, std::span<const PinKey> keys, uint64_t deadline_ms,
           Answer answer) LARDER_EXCLUDES(mu_);
  // Of each key: kOk, kMissing (that owner does not pin it).
  void Unpin(std::string_view owner, std::span<const PinKey> keys, Answer answer)
      LARDER_EXCLUDES(mu_);
  // All of an owner: kOk for each.
  void UnpinAll(std::string_view owner, Answer answer) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<BlockStatus> Prefetch(std::span<const PinKey> keys,
                                                  uint64_t deadline_ms);

  // Every 100 ms or so: ends pins at their deadline, and brings what is not where it is pinned.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_, sweep_mu_);

 private:
  struct Request {
    std::vector<DiskTier::Fact> facts;
    std::vector<BlockStatus> statuses;
    Answer answer;  // may be empty
  };
  [[nodiscard]] static DiskTier::Fact FactOf(const Digest& variant, std::string_view owner,
                                             const PinKey& key, uint64_t deadline_ms);
  [[nodiscard]] DiskTier::Fact Forgotten(std::string_view owner, const PinKey& key) const;
  void Write(Request request) LARDER_EXCLUDES(mu_);
  void Run() LARDER_EXCLUDES(mu_);
  void WriteAll(std::vector<Request> requests);
  void Expire() LARDER_EXCLUDES(mu_);
  // Pinned where they are not, at most kBroughtAtOnce.
  [[nodiscard]] std::vector<PinKey> Astray() const;
  void Bring(std::span<const PinKey> keys);
  void Promote(VariantIndex variant, std::span<const Digest> digests);

  BlockStore& store_;
  const Disk disk_;
  Counters& counters_;
  const WallClock now_ms_;
  const std::shared_ptr<std::atomic<size_t>> under_way_;  // blocks that are being promoted

  Mutex sweep_mu_;
  TimePoint next_sweep_ LARDER_GUARDED_BY(sweep_mu_);

  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<Request> requests_ LARDER_GUARDED_BY(mu_);
  std::thread writer_;  // joinable where there is a disk
};

}  // namespace larder
