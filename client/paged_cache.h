// An engine's paged KV cache on a device: puts its blocks, and loads them back into its pages,
// without the engine's compute and without a hop over pageable memory.
//
//   auto opened  = OpenDevice(DeviceWish::kAuto);
//   auto session = (*client)->Attach({.engine_id = "e0", .device = opened->device.get()});
//   auto cache   = PagedCache::Make(**session, *opened->device, variant, layout, payload, {});
//   auto put     = (*cache)->Put(blocks, &computed);  // `computed`: an event of the engine's
//   auto load    = (*cache)->Load(wanted, {0, 32}, &pages_free);
//   auto placed  = load->Wait(deadline);                        // status per block
//
// Bytes go by the device's copy engines where both sides have them in long runs, else through
// memory of the device and a scatter (or gather) on few multiprocessors; copies and moves overlap.
// What it promises: a block is told as kOk when all its bytes are in the pages, checked as the
// daemon checks host reads, and the lease on them still held then.  Pages of any other block hold
// anything.
// Ownership: session and device are the caller's and outlive it, and it outlives its loads.  It has
// `staging_bytes` of the device.
// Thread-safety: none; one engine thread.  The queues are its own.
// Limits: kLoadBlocksMax blocks a load, 4,096 a put.
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
  ByteCount staging_bytes = MiB(256);  // of the device; at least two blocks
  uint32_t multiprocessors = 4;        // that gathers and scatters keep busy at most
  bool low_priority = true;            // copies and moves yield to the engine's work
};

struct PagedGet {
  Digest digest;
  std::span<const uint32_t> pages;  // as PagedBlock has them
  uint32_t first_slot = 0;
};

struct PagedPut {
  Digest digest, parent;
  std::span<const uint32_t> tokens;
  std::span<const uint32_t> pages;
  uint32_t first_slot = 0;
  Digest content = {};  // as PutBlock has it
};

// Blocks on their way into pages.  Dropping it waits until the device does not touch them any more
// (synchronizes), and gives the lease back.  Movable.
class PagedLoad {
 public:
  PagedLoad(PagedLoad&&) = default;
  PagedLoad& operator=(PagedLoad&& other) noexcept;
  ~PagedLoad();

  // Blocks, by index, that were placed since the last call: their event fired, and the lease held.
  // Does not wait.
  [[nodiscard]] absl::StatusOr<std::vector<uint32_t>> Placed();
  // All that became of them; kCancelled: not there by the deadline, or the lease was revoked
  // meanwhile.  An error: the device failed.
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Wait(
      std::chrono::steady_clock::time_point deadline);
  // For the engine's queue to wait for instead; null where nothing is on its way.
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
  size_t told_ = 0;  // steps that Placed has told
};

class PagedCache {
 public:
  static constexpr size_t kLoadBlocksMax = 512;  // whose segments the daemon tells in one answer

  // `payload` says how the variant's blocks lie: block_tokens and layers are the variant's.
  // InvalidArgument: what PagedPlan::Make says, another variant, or too little staging.
  // REQUIRES: the session was attached with `device`.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PagedCache>> Make(
      Session& session, Device& device, const VariantHandle& variant, const PagedLayout& engine,
      const PayloadLayout& payload, const PagedCacheOptions& options);

  // Begins to load layers of blocks into pages, once `pages_free` fired (null: they are).
  // InvalidArgument: pages or layers are not the engine's, or too many blocks.  Otherwise as
  // Session::Acquire.
  [[nodiscard]] absl::StatusOr<PagedLoad> Load(std::span<const PagedGet> blocks, LayerRange layers,
                                               const DeviceEvent* pages_free = nullptr,
                                               const CallOptions& options = {});
  // Stores whole blocks, once `computed` fired (null: they are there).  Returns when the pages may
  // be written again and the blocks are visible.  Per block as Session::Put.
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
        payload_stride_(RoundUp(payload_bytes_, kSegmentAlign)),
        options_(options) {}

  // A part of the staging memory, used by one step after the other.
  struct Slot {
    uint64_t address = 0;
    std::unique_ptr<DeviceEvent> free;  // null: it is
  };
  static constexpr size_t kSlots = 4;

  [[nodiscard]] absl::Status Open(Device& device);
  [[nodiscard]] size_t BlocksPerStep() const;
  [[nodiscard]] absl::Status WaitBefore(const DeviceEvent* event);
  // From payloads in memory of the process to pages, or back; one event at the end.  After an error
  // nothing of it is on its way any more.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> LoadStep(
      std::span<const PagedBlock> blocks, LayerRange layers);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> StoreStep(
      std::span<const PagedBlock> blocks);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> QueueLoad(
      std::span<const PagedBlock> blocks, LayerRange layers);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> QueueStore(
      std::span<const PagedBlock> blocks);
  // Waits for all that is queued.  False: the device failed, and may still write anywhere.
  bool Drain();
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> CopyRuns(
      std::span<const PagedBlock> blocks, LayerRange layers, bool to_device);
  [[nodiscard]] absl::StatusOr<Slot*> NextSlot(DeviceQueue& user);

  // Steps over all blocks of a load whose payloads are in `lease`.
  [[nodiscard]] absl::Status Queue(PagedLoad& load, std::span<const PagedGet> blocks,
                                   LayerRange layers);
  // Where the session cannot lend memory (stream mode): through a pinned buffer, step by step.
  [[nodiscard]] absl::StatusOr<PagedLoad> LoadThroughBuffer(std::span<const PagedGet> blocks,
                                                            LayerRange layers,
                                                            const CallOptions& options);
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> PutThroughBuffer(
      std::span<const PagedPut> blocks, const CallOptions& options);
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> PutInPlace(
      std::span<const PagedPut> blocks, const CallOptions& options);
  // Spans of the buffer that hold the segments of the step's block `i`.
  [[nodiscard]] std::vector<std::span<std::byte>> BufferSegments(size_t i) const;

  Session& session_;
  const VariantHandle variant_;
  const PagedPlan plan_;
  const PayloadLayout payload_;
  const uint64_t payload_bytes_;
  const uint64_t payload_stride_;  // from one payload to the next, in staging and buffer
  const PagedCacheOptions options_;
  std::unique_ptr<DeviceMemory> staging_;
  std::unique_ptr<PinnedMemory> buffer_;  // null where the session lends memory
  // Extents that a failed device may still write to: they go back when its process is dead.
  std::vector<Reservation> in_doubt_;
  Slot slots_[kSlots];
  size_t next_slot_ = 0;
  std::unique_ptr<DeviceQueue> copies_, moves_;  // last: their ends wait for what uses the above
};

}  // namespace larder
