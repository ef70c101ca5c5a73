// A PageStore whose loads arrive over an emulated link (storage/token_bucket.h), to measure on a
// machine without a slow link how an engine fares with one.
//
// All movers share the link, which carries one block after the other.  A block is written to its
// pages when its last byte has arrived; until then it can be refused (PageWrites).  Of a load layer
// by layer the link carries one layer of all blocks after the other, and tells of each when it has
// arrived; the pages may have its bytes before.  Stores and lookups do not use the link, and
// neither do blocks that the store does not have.
// Ownership and thread-safety: those of PageStore.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "client/engine/page_store.h"
#include "storage/token_bucket.h"

namespace larder {

class LinkedStore final : public PageStore {
 public:
  // `block_bytes`, `layers`: of each block that is loaded.
  LinkedStore(std::unique_ptr<PageStore> store, std::shared_ptr<TokenBucket> link,
              ByteCount block_bytes, uint32_t layers)
      : store_(std::move(store)),
        link_(std::move(link)),
        block_bytes_(block_bytes),
        layers_(layers) {}

  [[nodiscard]] absl::Status status() const override { return store_->status(); }
  [[nodiscard]] std::optional<Digest> Seed(ContentSpec content) const override {
    return store_->Seed(std::move(content));
  }
  [[nodiscard]] std::unique_ptr<Question> Ask(std::span<const Digest> steps,
                                              TokenCount first_token) override {
    return store_->Ask(steps, first_token);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Mover>> MakeMover() override;

 private:
  const std::unique_ptr<PageStore> store_;
  const std::shared_ptr<TokenBucket> link_;
  const ByteCount block_bytes_;
  const uint32_t layers_;
};

}  // namespace larder
