// Which blocks a verb of many blocks means, however many they are: wire::SelectionScope against
// what is stored.
//
// Values; the store is only asked.  Thread-safety: as any value; looking takes seconds where there
// are millions of blocks, and may wait for the disk.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "server/instances/block_selection.h"
#include "server/instances/device_table.h"
#include "server/instances/instance_table.h"
#include "storage/disk/disk_tier.h"
#include "server/verbs/chain_forest.h"
#include "storage/store/block_store.h"

namespace larder {

struct BlockScope {
  wire::SelectionScope scope = wire::SelectionScope::kBlocks;
  SelectedBlocks blocks;  // of kBlocks
  std::string engine_id;  // of DEVICE, what this one has; empty: any
  std::optional<absl::flat_hash_set<VariantIndex>> variants;  // of these alone
  Digest content_id;                                          // of kContent
  BlockWriter writer;                                         // of kWriter
  std::vector<uint64_t> ends;  // of kPrefix: IndexHash of its last whole block, for each variant
};

// InvalidArgument: as Select; a prefix that is shorter than a block of any variant.
[[nodiscard]] absl::StatusOr<BlockScope> MakeScope(
    wire::SelectionScope scope, const wire::BlockSelection& selection, const Digest& content_id,
    std::span<const uint32_t> tokens, const InstanceTable& instances, const BlockStore& store);

// What is stored of a scope, as it was when this was made.
class ScopeMembers {
 public:
  // `disk` may be null; `devices` too, where DEVICE does not matter.  Unavailable: the disk did not
  // say of which content, or writer, some blocks are; all others are known.
  static absl::Status Find(const BlockScope& scope, const BlockStore& store, DiskTier* disk,
                           const DeviceTable* devices, ScopeMembers* members);

  [[nodiscard]] bool Contains(VariantIndex variant, const Digest& digest) const;
  // Those that an engine of the scope has in device memory; each once.
  [[nodiscard]] std::vector<std::pair<VariantIndex, Digest>> OnDevice(
      const BlockScope& scope, const DeviceTable& devices) const;
  // Calls visit(variant, digest) for each that is stored in a tier.
  template <class Visit>
  void ForEach(const BlockStore& store, Visit visit) const {
    store.index().ForEach([&](const BlockIndex::View& block) {
      if (InATier(block.state) && Contains(block.variant, block.digest))
        visit(block.variant, block.digest);
    });
  }

 private:
  [[nodiscard]] bool HasVariant(VariantIndex variant) const {
    return !variants_ || variants_->contains(variant);
  }
  // Each block on disk alone is asked for there.
  absl::Status FindWritten(const BlockWriter& writer, const BlockStore& store, DiskTier* disk);
  absl::Status FindContent(const Digest& content_id, const BlockStore& store, DiskTier* disk,
                           const DeviceTable* devices);

  std::optional<absl::flat_hash_set<VariantIndex>> variants_;
  bool all_ = false;
  ChainForest::Names names_;  // unless all_
};

}  // namespace larder
