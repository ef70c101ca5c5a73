// A restore into an engine's paged KV cache on a device: its loads land in its pages, by the
// device, while it computes.
//
//   Restorer restorer(session, variant, profile, {.scheduler = {.hedges = false}});
//   PagedRestore engine({&pool_cache}, pages, {0, layers}, compute);  // a PagedCache per channel
//   auto restored = restorer.Restore(prefix, engine);
//
// A block is told as loaded when its event fired, and the lease on it was held then; none is on its
// way any more when Restore returns, unless the device itself failed (paged_cache.h): it is waited
// for as long as its copies take.
// Ownership: borrows the caches, which have queues of their own, and `pages_free`; pages stay the
// engine's.
// Thread-safety: as RestoreEngine's.  While Restore runs each cache is its channel's alone: nothing
// is put or loaded through it.
#pragma once

#include <functional>
#include <vector>

#include "client/paged_cache.h"
#include "client/restorer.h"

namespace larder {

class PagedRestore final : public RestoreEngine {
 public:
  // `compute`: computes these tokens into their pages; it may only return when that is done, for
  // the pages are read, and more may land beside them, as soon as it does.
  // caches[i]: of channel i + 1.  `blocks`: of the prefix, in order.  `pages_free`: an event of the
  // engine's after which its pages may be written; null: they may.  REQUIRES: a restore of a prefix
  // of as many blocks.
  PagedRestore(std::vector<PagedCache*> caches, std::vector<PagedGet> blocks, LayerRange layers,
               std::function<absl::Status(TokenRange)> compute,
               const DeviceEvent* pages_free = nullptr)
      : caches_(std::move(caches)),
        blocks_(std::move(blocks)),
        layers_(layers),
        compute_(std::move(compute)),
        pages_free_(pages_free) {}

  [[nodiscard]] absl::Status Compute(TokenRange tokens) override { return compute_(tokens); }
  [[nodiscard]] absl::Status Place(TokenRange /*tokens*/,
                                   std::span<const Layers> /*blocks*/) override {
    return absl::OkStatus();
  }
  [[nodiscard]] bool lands() const override { return true; }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Land(ChannelId channel,
                                                              std::span<const uint32_t> blocks,
                                                              const CallOptions& call) override;

 private:
  const std::vector<PagedCache*> caches_;
  const std::vector<PagedGet> blocks_;
  const LayerRange layers_;
  const std::function<absl::Status(TokenRange)> compute_;
  const DeviceEvent* const pages_free_;
};

}  // namespace larder
