// Pins and prefetches: writes pins to disk, so that they outlive the daemon, ends them at their
// deadlines, and, if there is a disk, brings blocks into the tiers in which they are pinned.
//
// BlockStore::pins() decides which blocks are pinned.  On disk a pin is a small value of the disk
// tier (DiskTier::Fact) under "pin/" VARIANT DIGEST TIER OWNER: its deadline (docs/format.md).  A
// prefetch is a pin of HOST without an owner, and is not written to disk.
// Ownership: Daemon owns it.  Store, disk and counters outlive it; jobs of the promoter may outlive
// it.
// Thread-safety: Load before any other call, the other methods from any thread.  Pin and Unpin do
// not wait for the disk: a thread of this object, the writer, writes the changes of several calls
// together and answers the calls.  It writes each pin as the pin is at the time of the write, so
// the order of calls does not matter.  If the disk does not accept a change, the writer tries again
// later.
// Locks: mu_ is a leaf, and is not held while the disk or an Answer is called.  sweep_mu_ is held
// while the index is walked.
// Lifecycle: constructed -> Load -> the disk's recovery -> ... -> destroyed, which answers the
// calls that wait.
// Memory: the names of the pins that are to be written, and about 16 bytes for each pin on disk.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/metrics/counters.h"
#include "storage/clock.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

class PinVerb {
 public:
  static constexpr size_t kOwnerBytesMax = 256;
  // The most pinned blocks that Sweep begins at once to bring into their tiers.
  static constexpr size_t kBroughtAtOnce = 1024;

  PinVerb(BlockStore& store, DiskParts disk, Counters& counters, WallClock now_ms);
  ~PinVerb();
  PinVerb(const PinVerb&) = delete;
  PinVerb& operator=(const PinVerb&) = delete;

  // Restores the pins that a former daemon left on disk; returns how many.
  size_t Load();
  [[nodiscard]] bool durable() const { return disk_.tier != nullptr; }
  [[nodiscard]] uint64_t DeadlineIn(std::chrono::milliseconds ttl) const {
    return now_ms_() + static_cast<uint64_t>(ttl.count());
  }

  // Receives OK when what the call changed is on disk or need not be written.  Receives Unavailable
  // if the disk may not have all changes, which then hold in this daemon at least.  Also receives a
  // status for each key, or for each pin that was ended.  Called once, on the calling thread or the
  // writer's.
  using Answer = std::function<void(const absl::Status&, std::vector<BlockStatus>)>;
  // The status of each key is kOk if its block is in the key's tier, kPending if the block is
  // pinned but is in another tier, kMissing if there is no such block, kFull at a limit.  kMissing
  // and kFull add no pin.  REQUIRES: owner has 1 to kOwnerBytesMax bytes.
  void Pin(std::string_view owner, std::span<const PinKey> keys, uint64_t deadline_ms,
           Answer answer) LARDER_EXCLUDES(mu_);
  // The status of each key is kOk, or kMissing if this owner does not pin it.
  void Unpin(std::string_view owner, std::span<const PinKey> keys, Answer answer)
      LARDER_EXCLUDES(mu_);
  // Ends all pins of an owner; `answer` receives kOk for each.
  void UnpinAll(std::string_view owner, Answer answer) LARDER_EXCLUDES(mu_);
  // Ends all pins and prefetches of the blocks for which `which` returns true; `answer` receives
  // kOk for each.
  void UnpinBlocks(absl::FunctionRef<bool(VariantIndex, const Digest&)> which, Answer answer)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<BlockStatus> Prefetch(std::span<const PinKey> keys,
                                                  uint64_t deadline_ms);

  // Ends pins whose deadline has passed, a limited number at a time, and at intervals begins to
  // bring pinned blocks into their tiers.  To be called several times per second.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_, sweep_mu_);

 private:
  void EndPins(std::span<const larder::Pin> ended, Answer answer) LARDER_EXCLUDES(mu_);

  using Name = std::pair<std::string, PinKey>;  // owner first
  using Names = std::set<Name>;
  struct Waiting {
    Answer answer;
    std::vector<BlockStatus> statuses;
  };
  // Has the writer write `changed`, with the changes of earlier calls that still wait, and then
  // answer `waiting`.  Answers OK at once if there is nothing to write or no disk.
  void Write(std::vector<Name> changed, Waiting waiting) LARDER_EXCLUDES(mu_);
  void Run() LARDER_EXCLUDES(mu_);
  // Waits for changes to write, and takes them with the calls that wait for them.  Returns false if
  // there are none and the writer is to end.
  [[nodiscard]] bool AwaitWork(Names* changed, std::vector<Waiting>* waiting) LARDER_EXCLUDES(mu_);
  // Writes the present state of these pins.  Returns Unavailable, with the reason, if the disk did
  // not accept all; those that it may not have are queued again.
  [[nodiscard]] absl::Status WriteNames(const Names& names) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status WriteSome(std::span<const Name> names);
  void Expire() LARDER_EXCLUDES(mu_);
  void Sweep() LARDER_EXCLUDES(sweep_mu_);
  // Returns up to kBroughtAtOnce pinned blocks that are only in another tier than the pin's, and
  // sets *all to the number of all such blocks.  If there are more, later calls return others.
  [[nodiscard]] std::vector<PinKey> Astray(size_t* all) LARDER_REQUIRES(sweep_mu_);
  void Bring(std::span<const PinKey> keys);
  void Spill(const PinKey& key);
  void Promote(VariantIndex variant, std::span<const Digest> digests);

  BlockStore& store_;
  const DiskParts disk_;
  Counters& counters_;
  const WallClock now_ms_;
  const std::shared_ptr<std::atomic<size_t>> under_way_;  // blocks that are being promoted

  Mutex sweep_mu_;
  TimePoint next_sweep_ LARDER_GUARDED_BY(sweep_mu_);
  Duration sweep_period_ LARDER_GUARDED_BY(sweep_mu_);
  size_t astray_ LARDER_GUARDED_BY(sweep_mu_) = 0;  // pins out of their tier at the last sweep
  size_t passed_ LARDER_GUARDED_BY(sweep_mu_) = 0;  // how many of those have had their turn

  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  Names changed_ LARDER_GUARDED_BY(mu_);
  TimePoint not_before_ LARDER_GUARDED_BY(mu_);  // for a write for which no call waits
  std::vector<Waiting> waiting_ LARDER_GUARDED_BY(mu_);
  // Hashes of the names (KeyOf) of pins that the disk may have.  Used by Load, and then by the
  // writer only.
  absl::flat_hash_set<uint64_t> on_disk_;
  std::thread writer_;  // joinable if there is a disk
};

}  // namespace larder
