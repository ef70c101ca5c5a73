// A restore into an engine's paged KV cache on a device: the device copies loaded blocks into the
// engine's pages while the engine computes.
//
//   Restorer restorer(session, variant, profile, {.scheduler = {.hedges = false}});
//   PagedRestore engine({&pool_cache}, pages, {0, layers}, compute);  // a PagedCache per channel
//   auto restored = restorer.Restore(prefix, engine);
//
// A block counts as loaded only when PagedLoad::Wait has reported it as kOk.  When Restore returns,
// no block is on its way any more, unless the device failed (paged_cache.h).
// Ownership: Borrows the caches, which have their own queues, and `pages_free`.  The pages stay the
// engine's.
// Thread-safety: Restore calls Compute and Place on its caller's thread, and Land on the channels'
// threads.  While Restore runs, the caller must not use the caches.
#pragma once

#include <functional>
#include <vector>

#include "client/paged_cache.h"
#include "client/restorer.h"

namespace larder {

class PagedRestore final : public RestoreEngine {
 public:
  // `compute` computes the given tokens into their pages.  It must not return before that is done,
  // because later steps read these pages.
  // caches[i] is the cache of channel i + 1.  `blocks` are those of the prefix, in order.
  // `pages_free` is an event of the engine after which its pages may be written; null: the pages
  // may be written now.  REQUIRES: the restored prefix has as many blocks as `blocks`.
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
