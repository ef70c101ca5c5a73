// An engine's paged KV cache on a device.  PagedCache stores blocks of the cache and loads blocks
// back into its pages, on device queues of its own, so that the engine computes meanwhile, and
// without a copy through pageable memory.
//
//   auto opened  = OpenDevice(DeviceWish::kAuto);
//   auto session = (*client)->Attach({.engine_id = "e0", .device = opened->device.get()});
//   auto cache   = PagedCache::Make(**session, *opened->device, variant, layout, payload, {});
//   auto put     = (*cache)->Put(blocks, &computed);  // `computed`: an event of the engine
//   auto load    = (*cache)->Load(wanted, {0, 32}, &pages_free);  // layers 0 to 31
//   auto placed  = load->Wait(deadline);                        // status per block
//
// If the layouts of pages and payload have their bytes in long runs, the device's copy engines move
// them directly; otherwise they go through staging memory of the device and a scatter (or gather)
// on few multiprocessors.  Copies of one step overlap with the scatter or gather of another.
// A block is reported as kOk only when all its bytes are in the pages, were checked as the daemon
// checks reads from HOST (a sample of the blocks), and the lease on them was still valid then.  The
// content of the pages of any other block is undefined.
// Ownership: Session and device are the caller's and outlive the cache; the cache outlives its
// loads.  PagedCache allocates `staging_bytes` of device memory if it scatters and gathers, and a
// quarter of that as pinned host memory if the session does not both read and write in place.
// Thread-safety: None; one engine thread uses it.  Its device queues are its own.
// Limits: kLoadBlocksMax blocks in a load.  A put runs in steps; each step takes the blocks that
// fit in a quarter of `staging_bytes`.  More than 4,096 blocks in a step fail with InvalidArgument.
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
  uint32_t multiprocessors = 4;        // at most so many run gathers and scatters
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

// Blocks on their way into pages.  The destructor waits until the device no longer touches them (it
// synchronizes), and then releases the lease.  Movable.
class PagedLoad {
 public:
  PagedLoad(PagedLoad&&) = default;
  PagedLoad& operator=(PagedLoad&& other) noexcept;
  ~PagedLoad();

  // Returns the blocks, by index, that were placed since the last call: their event has fired, and
  // the lease is still valid.  Does not wait.
  [[nodiscard]] absl::StatusOr<std::vector<uint32_t>> Placed();
  // Returns the final status of every block.  kCancelled: the block was not there by the deadline,
  // or the lease was revoked meanwhile.  Returns an error if the device failed.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Wait(
      std::chrono::steady_clock::time_point deadline);
  // Returns the event that fires when all copies of this load are done, so that the engine's queue
  // can wait for it instead of a thread.  Returns null if no block is on its way.
  [[nodiscard]] const DeviceEvent* event() const;

 private:
  friend class PagedCache;
  PagedLoad() = default;
  // Blocks whose bytes are in the pages once the event fired.
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
  // The number of blocks whose segment tables the daemon sends in one answer.
  static constexpr size_t kLoadBlocksMax = 512;

  // `payload` is the layout of the variant's blocks; its block_tokens and layers are the variant's.
  // Returns InvalidArgument if PagedPlan::Make does, if `engine` or `payload` does not match the
  // variant, or if there is too little staging memory.
  // REQUIRES: the session was attached with `device`.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PagedCache>> Make(
      Session& session, Device& device, const VariantHandle& variant, const PagedLayout& engine,
      const PayloadLayout& payload, const PagedCacheOptions& options);

  // Begins to load layers of blocks into pages, once `pages_free` has fired (null: the pages are
  // free).  Returns InvalidArgument if the pages or layers are not the engine's, or if there are
  // too many blocks; other errors are those of Session::Acquire.
  [[nodiscard]] absl::StatusOr<PagedLoad> Load(std::span<const PagedGet> blocks, LayerRange layers,
                                               const DeviceEvent* pages_free = nullptr,
                                               const CallOptions& options = {});
  // Stores whole blocks, once `computed` has fired (null: they are computed).  Returns when the
  // pages may be written again and the blocks are visible, with a status per block as Session::Put.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(std::span<const PagedPut> blocks,
                                                             const DeviceEvent* computed = nullptr,
                                                             const CallOptions& options = {});

 private:
  PagedCache(Session& session, const VariantHandle& variant, PagedPlan plan, PayloadLayout payload,
             const PagedCacheOptions& options)
      : session_(session),
        variant_(variant),
        plan_(std::move(plan)),
        payload_(std::move(payload)),
        payload_bytes_(payload_.table.PayloadBytes().value()),
        payload_stride_(PayloadStride(payload_bytes_)),
        options_(options) {}

  // A part of the staging memory, which successive steps use in turn.
  struct Slot {
    uint64_t address = 0;
    std::unique_ptr<DeviceEvent> free;  // its last use; null: not used yet
  };
  static constexpr size_t kSlots = 4;

  [[nodiscard]] absl::Status Open(Device& device);
  [[nodiscard]] size_t BlocksPerStep() const;
  [[nodiscard]] absl::Status WaitBefore(const DeviceEvent* event);
  // Moves payloads in memory of the process to pages, or back, and records one event at the end.
  // After an error none of the step's work is under way any more, unless the device failed.
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

  // Queues the steps over all blocks of a load whose payloads are in its lease.
  [[nodiscard]] absl::Status Queue(PagedLoad& load, std::span<const PagedGet> blocks,
                                   LayerRange layers);
  // Loads through a pinned buffer, step by step, for a session that does not read in place.
  [[nodiscard]] absl::StatusOr<PagedLoad> LoadThroughBuffer(std::span<const PagedGet> blocks,
                                                            LayerRange layers,
                                                            const CallOptions& options);
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> PutThroughBuffer(
      std::span<const PagedPut> blocks, const CallOptions& options);
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> PutInPlace(
      std::span<const PagedPut> blocks, const CallOptions& options);
  // Returns the spans of the buffer that hold the segments of the step's block `i`.
  [[nodiscard]] std::vector<std::span<std::byte>> BufferSegments(size_t i) const;

  Session& session_;
  const VariantHandle variant_;
  const PagedPlan plan_;
  const PayloadLayout payload_;
  const uint64_t payload_bytes_;
  const uint64_t payload_stride_;  // from one payload to the next, in staging memory and buffer
  const PagedCacheOptions options_;
  std::unique_ptr<DeviceMemory> staging_;
  std::unique_ptr<PinnedMemory> buffer_;  // null if the session reads and writes in place
  // Extents that a failed device may still write to.  They are returned when this cache is
  // destroyed.
  std::vector<Reservation> in_doubt_;
  Slot slots_[kSlots];
  size_t next_slot_ = 0;
  // Last: their destructors wait for work that uses the members above.
  std::unique_ptr<DeviceQueue> copies_, moves_;
};

}  // namespace larder
