// Finds the blocks that a call such as Clear or Move selects by a wire::SelectionScope: blocks that
// are stored, or in DEVICE.
//
// The types here are values.  Their functions only read the store, the disk and the device table.
// Thread-safety: as any value.
// Blocking: Find may take seconds with millions of blocks, and may wait for the disk.
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
#include "server/verbs/chain_forest.h"
#include "storage/disk/disk_tier.h"
#include "storage/store/block_store.h"

namespace larder {

struct BlockScope {
  wire::SelectionScope scope = wire::SelectionScope::kBlocks;
  SelectedBlocks blocks;  // for kBlocks
  std::string engine_id;  // for DEVICE, blocks of this engine only; empty means every engine
  std::optional<absl::flat_hash_set<VariantIndex>> variants;  // nullopt means every variant
  Digest content_id;                                          // for kContent
  BlockWriter writer;                                         // for kWriter
  std::vector<uint64_t> ends;  // for kPrefix: IndexHash of the last whole block, per variant
};

// Returns InvalidArgument if the selection is not valid or too large.
[[nodiscard]] absl::StatusOr<BlockScope> MakeScope(
    wire::SelectionScope scope, const wire::BlockSelection& selection, const Digest& content_id,
    std::span<const uint32_t> tokens, const InstanceTable& instances, const BlockStore& store);

// Which blocks belong to a scope, as Find found them.
class ScopeMembers {
 public:
  // `disk` may be null.  `devices` may be null if blocks of DEVICE do not matter.  Returns
  // Unavailable if the content or the writer of some blocks could not be read from the disk;
  // *members then has the blocks that were found.
  static absl::Status Find(const BlockScope& scope, const BlockStore& store, DiskTier* disk,
                           const DeviceTable* devices, ScopeMembers* members);

  [[nodiscard]] bool Contains(VariantIndex variant, const Digest& digest) const;
  // Returns the blocks of the scope that the engine scope.engine_id, or any engine if that is
  // empty, has in device memory, each once.
  [[nodiscard]] std::vector<std::pair<VariantIndex, Digest>> OnDevice(
      const BlockScope& scope, const DeviceTable& devices) const;
  // Calls visit(const BlockIndex::View&) for each block of the index that is in the scope.
  template <class Visit>
  void ForEach(const BlockStore& store, Visit visit) const {
    store.index().ForEach([&](const BlockIndex::View& block) {
      if (Contains(block.variant, block.digest)) visit(block);
    });
  }

 private:
  [[nodiscard]] bool HasVariant(VariantIndex variant) const {
    return !variants_ || variants_->contains(variant);
  }
  // Finds the blocks that `writer` stored.  For a block that is only on disk, reads the record
  // header; since records do not name the engine, a writer with an engine selects no such block.
  absl::Status FindWritten(const BlockWriter& writer, const BlockStore& store, DiskTier* disk);
  absl::Status FindContent(const Digest& content_id, const BlockStore& store, DiskTier* disk,
                           const DeviceTable* devices);

  std::optional<absl::flat_hash_set<VariantIndex>> variants_;
  bool all_ = false;
  ChainForest::Names names_;  // unused if all_
};

}  // namespace larder
