// An engine's paged KV cache on a device.  PagedCache stores blocks of the cache and loads blocks
// back into its pages, on device queues of its own, so that the engine's work on the device
// continues meanwhile.  In a session that reads in place, Load copies from the pool to the device,
// and in one that also writes in place, Put copies from the device to the pool.  Otherwise bytes go
// through a pinned buffer and the session's Get or Put.
//
//   auto opened  = OpenDevice(DeviceWish::kAuto);
//   auto session = (*client)->Attach({.engine_id = "e0", .device = opened->device.get()});
//   auto cache   = PagedCache::Make(**session, *opened->device, variant, layout, payload, {});
//   auto put     = (*cache)->Put(blocks, &computed);  // `computed`: an event of the engine
//   auto load    = (*cache)->Load(wanted, {0, 32}, &pages_free);  // layers 0 to 31
//   auto placed  = load->Wait(deadline);                        // status per block
//
// If the layouts of pages and payload have their bytes in long runs, the device's copy engines move
// them directly; otherwise they go through staging memory of the device and a scatter (or gather).
// On the host device, all of them work on the pool, or on the pinned buffer, itself.
// A load reports a block as kOk only when all wanted bytes of it are in the pages, and, if they
// were read in place, their lease was still valid then.  The pages of a block that is not kOk have
// undefined content.  Not every read from HOST is checked against the hashes.
// Ownership: Session and device are the caller's and outlive the cache; the cache outlives its
// loads.  PagedCache allocates `staging_bytes` of device memory if it scatters and gathers on a
// GPU, and about a quarter of that as pinned host memory if the session does not both read and
// write in place.
// Thread-safety: None; one thread at a time uses it.
// Limits: kLoadBlocksMax blocks in a load.  A put runs in steps of as many blocks as fit in a
// quarter of `staging_bytes`; a step of more than 4,096 blocks fails.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "cuda/device.h"

namespace larder {

struct PagedCacheOptions {
  ByteCount staging_bytes = MiB(256);  // at least four blocks; a step uses a quarter
  uint32_t multiprocessors = 4;        // at most so many run gathers and scatters; 0: all
  bool low_priority = true;            // copies, gathers and scatters yield to the engine
};

struct PagedGet {
  Digest digest;
  std::span<const uint32_t> pages;  // as in PagedBlock
  uint32_t first_slot = 0;
};

struct PagedPut {
  Digest digest, parent;
  std::span<const uint32_t> tokens;
  std::span<const uint32_t> pages;
  uint32_t first_slot = 0;
  Digest content = {};  // as in PutBlock
};

// Hears when the engine's pages are read by a Put.  Both methods run on the thread that called Put.
class PageReads {
 public:
  virtual ~PageReads() = default;
  // Called before pages of a part of the batch are read.  If it returns false, they are not read,
  // and Put returns Cancelled.
  [[nodiscard]] virtual bool Begin() = 0;
  // Called after each Begin that returned true, once nothing reads these pages any more.  Not
  // called if the device failed and may still read them.
  virtual void End() = 0;
};

// Decides, when the bytes of a block are at hand, whether a Load may write its pages.
class PageWrites {
 public:
  virtual ~PageWrites() = default;
  // Called on the thread that called Load, at most once for each block, before its pages are
  // written.  If it returns false, they are not written, and the block is kCancelled.
  [[nodiscard]] virtual bool Begin(size_t block) = 0;
  // Whether Begin may still return true for a block.  If not, nothing needs to wait for its bytes.
  [[nodiscard]] virtual bool Wanted(size_t /*block*/) const { return true; }
};

// Blocks on their way into pages.  The destructor waits until their copies are done or the device
// has failed, and then releases what the load holds.  Movable.
class PagedLoad {
 public:
  PagedLoad(PagedLoad&&) = default;
  PagedLoad& operator=(PagedLoad&& other) noexcept;
  ~PagedLoad();

  // Returns blocks, by index, whose copies have ended and that no earlier call returned; none if
  // their lease is no longer valid.  Does not wait.  Returns an error if the device failed.
  [[nodiscard]] absl::StatusOr<std::vector<uint32_t>> Placed();
  // Waits until all copies are done or the deadline has passed, and returns a status for every
  // block.  A block that is kCancelled because the deadline has passed may be kOk in another Wait.
  // Returns an error if the device failed.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Wait(
      std::chrono::steady_clock::time_point deadline);
  // Returns the event that fires when all copies of this load are done, so that the engine's queue
  // can wait for it instead of a thread.  Returns null if the load has no copies.
  [[nodiscard]] const DeviceEvent* event() const;

 private:
  friend class PagedCache;
  PagedLoad() = default;
  // Blocks whose bytes are in the pages once the event has fired.
  struct Step {
    std::unique_ptr<DeviceEvent> event;
    std::vector<uint32_t> blocks;
  };
  void Finish();

  Lease lease_;
  std::vector<BlockStatus> status_;
  std::vector<Step> steps_;
  size_t told_ = 0;  // steps that Placed has reported
};

class PagedCache {
 public:
  // The most blocks of one load: the daemon sends at most this many segment tables in one answer.
  static constexpr size_t kLoadBlocksMax = 512;

  // `payload` is the layout of the variant's blocks.  Returns InvalidArgument if the layouts do not
  // fit each other or the variant, or if `staging_bytes` is too small.  REQUIRES: the session was
  // attached with `device`.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PagedCache>> Make(
      Session& session, Device& device, const VariantHandle& variant, const PagedLayout& engine,
      const PayloadLayout& payload, const PagedCacheOptions& options);
  ~PagedCache();

  // Begins to load layers of blocks into pages; the device waits for `pages_free` before it writes
  // to the pages (null: they are free).  If the session does not read in place, Load returns only
  // when the copies are done.  Returns InvalidArgument if the pages or layers are not the engine's,
  // or if there are too many blocks; or another error of the session or the device.  `writes` may
  // be null; it is not used any more when Load has returned.
  [[nodiscard]] absl::StatusOr<PagedLoad> Load(std::span<const PagedGet> blocks, LayerRange layers,
                                               const DeviceEvent* pages_free = nullptr,
                                               const CallOptions& options = {},
                                               PageWrites* writes = nullptr);
  // Begins to load further layers of the same blocks, without a call to the daemon.  `load` is what
  // Load returned for `blocks`; Placed must not be called on it afterwards.  Returns
  // InvalidArgument if it is not, or if the session does not read in place.
  [[nodiscard]] absl::Status LoadMore(PagedLoad& load, std::span<const PagedGet> blocks,
                                      LayerRange layers);
  // Stores whole blocks; the device waits for `computed` before it reads them (null: they are
  // computed).  Returns when the pages may be written again, with a status per block; kOk and
  // kDuplicate are successes.  If the pool is full, blocks are kFull or the call returns
  // ResourceExhausted.  After an error, some of the blocks may be stored.  `reads` may be null.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(std::span<const PagedPut> blocks,
                                                             const DeviceEvent* computed = nullptr,
                                                             const CallOptions& options = {},
                                                             PageReads* reads = nullptr);

 private:
  PagedCache(Session& session, const VariantHandle& variant, PagedPlan plan, PayloadLayout payload,
             const PagedCacheOptions& options);

  // A part of the staging memory, which successive steps use in turn.
  struct Slot {
    uint64_t address = 0;
    std::unique_ptr<DeviceEvent> free;  // fires after its last use; null: not used yet
  };
  static constexpr size_t kSlots = 4;

  [[nodiscard]] absl::Status Open(Device& device);
  [[nodiscard]] size_t BlocksPerStep() const;
  [[nodiscard]] absl::Status WaitBefore(const DeviceEvent* event);
  // LoadStep moves payloads in memory of the process to pages, StoreStep moves pages to payloads.
  // The event fires when that is done.  After an error none of the step's work is under way any
  // more, unless the device failed.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> LoadStep(
      std::span<const PagedBlock> blocks, LayerRange layers);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> StoreStep(
      std::span<const PagedBlock> blocks);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> QueueLoad(
      std::span<const PagedBlock> blocks, LayerRange layers);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> QueueStore(
      std::span<const PagedBlock> blocks);
  // Waits for all queued work.  Returns false if the device failed: the device may then still be
  // writing.
  bool Drain();
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> CopyRuns(
      std::span<const PagedBlock> blocks, LayerRange layers, bool to_device);
  [[nodiscard]] absl::StatusOr<Slot*> NextSlot(DeviceQueue& user);

  // Queues the steps that load the blocks of `load.lease_`, and sets the blocks' statuses.
  [[nodiscard]] absl::Status Queue(PagedLoad& load, std::span<const PagedGet> blocks,
                                   LayerRange layers, PageWrites* writes);
  // Loads through a pinned buffer, step by step, for a session that does not read in place.
  [[nodiscard]] absl::StatusOr<PagedLoad> LoadThroughBuffer(std::span<const PagedGet> blocks,
                                                            LayerRange layers,
                                                            const CallOptions& options,
                                                            PageWrites* writes);
  // No call to the daemon begins after `until` or lasts beyond it, whatever options.deadline says.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> PutThroughBuffer(
      std::span<const PagedPut> blocks, const CallOptions& options,
      std::chrono::steady_clock::time_point until, PageReads* reads);
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> PutInPlace(
      std::span<const PagedPut> blocks, const CallOptions& options,
      std::chrono::steady_clock::time_point until, PageReads* reads);
  // Reads a step's pages, and waits until that is done.  Sets *in_doubt if the device failed, so
  // that it may still read and write.
  [[nodiscard]] absl::Status ReadPages(std::span<const PagedBlock> step, PageReads* reads,
                                       bool* in_doubt);
  // Returns the spans of the buffer that hold the segments of the step's block `i`.
  [[nodiscard]] std::vector<std::span<std::byte>> BufferSegments(size_t i) const;

  Session& session_;
  const VariantHandle variant_;
  const std::unique_ptr<const PagedPlan> plan_;
  const PayloadLayout payload_;
  const uint64_t payload_bytes_;
  const uint64_t payload_stride_;  // from one payload to the next, in staging memory and buffer
  const PagedCacheOptions options_;
  // Const after Open.
  bool copies_runs_ = false;  // copies are made of the runs, instead of a scatter or gather
  bool in_place_ = false;     // scatter and gather may use memory of the process
  std::unique_ptr<DeviceMemory> staging_;
  std::unique_ptr<PinnedMemory> buffer_;  // null if the session both reads and writes in place
  // Extents that a failed device may still write to.  They are returned when this cache is
  // destroyed.
  std::vector<Reservation> in_doubt_;
  Slot slots_[kSlots];
  size_t next_slot_ = 0;
  // Declared last, because their destructors wait for work that uses the members above.
  std::unique_ptr<DeviceQueue> copies_, moves_;
};

}  // namespace larder
