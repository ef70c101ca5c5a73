// The simplest Transport: a map in this process.  It is documentation by example, and the reference
// for the contract suite.
//
// It stores bytes without limit and never loses any.
// Ownership: Owns copies of what was put.
// Thread-safety: All methods may be called from any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "client/transport/transport.h"
#include "storage/format/block_key.h"
#include "storage/mutex.h"

namespace larder {

class LoopbackTransport final : public Transport {
 public:
  [[nodiscard]] const char* name() const override { return "loopback"; }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options) override;
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options) override;

 private:
  struct Stored {
    SegmentTable table;
    std::string payload;  // the segments, concatenated
  };
  BlockStatus PutOne(const VariantHandle& variant, const PutBlock& block) LARDER_REQUIRES(mu_);
  BlockStatus GetOne(const VariantHandle& variant, const GetBlock& block) LARDER_REQUIRES(mu_);

  Mutex mu_;
  absl::flat_hash_map<BlockKey, Stored> blocks_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
