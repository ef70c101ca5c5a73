#include "server/verbs/block_scope.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr size_t kDescribedAtOnce = 256;

// Returns, for each variant of which the chain has a whole block, the hash of the last one.
absl::StatusOr<std::vector<uint64_t>> EndsOf(std::span<const Digest> chain,
                                             std::span<const VariantIndex> variants,
                                             const BlockStore& store) {
  std::vector<uint64_t> ends;
  for (const VariantIndex variant : variants) {
    const std::shared_ptr<const VariantSpec> spec = store.SpecOf(variant);
    if (!spec) continue;  // the length of the variant's blocks is not known
    const size_t steps = spec->block_tokens / kStepTokens;
    const size_t whole = chain.size() / steps * steps;
    if (whole > 0) ends.push_back(IndexHash(variant, chain[whole - 1]));
  }
  if (ends.empty() && !variants.empty()) {
    return absl::InvalidArgumentError(
        "blocks.tokens: fewer than one block of any variant; give more tokens, or use "
        "SELECTION_SCOPE_CONTENT");
  }
  return ends;
}

// Looks up the records of blocks that are only on disk, and calls visit(block, header) for each one
// found.
template <class Visit>
absl::Status Describe(std::span<const ChainLink> blocks, const BlockStore& store, DiskTier& disk,
                      Visit visit) {
  std::vector<DiskAddress> places;
  for (const ChainLink& block : blocks)
    places.push_back({{store.index().VariantId(block.variant), block.digest},
                      DiskLocation{block.disk_location}});
  std::vector<std::optional<DiskTier::Description>> found(blocks.size());
  absl::Status status = disk.Describe(places, found);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (found[i]) visit(blocks[i], found[i]->header);
  }
  return status;
}

// Returns the links of the blocks of DEVICE whose tokens, and so whose parents, are known.
ChainForest::Links LinksOf(const DeviceTable* devices) {
  ChainForest::Links links;
  if (devices == nullptr) return links;
  devices->ForEach("", [&](VariantIndex variant, const Digest& digest, const Digest* parent) {
    if (parent != nullptr)
      links.emplace_back(IndexHash(variant, *parent), IndexHash(variant, digest));
  });
  return links;
}

}  // namespace

absl::StatusOr<BlockScope> MakeScope(wire::SelectionScope scope,
                                     const wire::BlockSelection& selection,
                                     const Digest& content_id, std::span<const uint32_t> tokens,
                                     const InstanceTable& instances, const BlockStore& store) {
  BlockScope made;
  made.scope = scope;
  made.engine_id = selection.engine_id;
  made.content_id = content_id;
  made.writer = selection.writer;
  if (scope == wire::SelectionScope::kBlocks) {
    LARDER_ASSIGN_OR_RETURN(made.blocks, Select(selection, content_id, tokens, instances, store));
    return made;
  }
  const std::vector<VariantIndex> variants = VariantsOf(selection, instances, store);
  // If the selection names neither variants nor an engine, the scope has blocks of every variant.
  if (!selection.variants.empty() || !selection.engine_id.empty())
    made.variants.emplace(variants.begin(), variants.end());
  if (scope == wire::SelectionScope::kPrefix) {
    LARDER_ASSIGN_OR_RETURN(made.ends, EndsOf(Chain(content_id, tokens), variants, store));
  }
  return made;
}

absl::Status ScopeMembers::Find(const BlockScope& scope, const BlockStore& store, DiskTier* disk,
                                const DeviceTable* devices, ScopeMembers* members) {
  *members = {};
  members->variants_ = scope.variants;
  switch (scope.scope) {
    case wire::SelectionScope::kBlocks:
      for (const SelectedBlocks::Block& block : scope.blocks.blocks)
        members->names_.insert(IndexHash(block.variant, scope.blocks.names[block.name]));
      return absl::OkStatus();
    case wire::SelectionScope::kPrefix:
      members->names_ = ChainForest(store.index(), LinksOf(devices)).Below(scope.ends);
      return absl::OkStatus();
    case wire::SelectionScope::kContent:
      return members->FindContent(scope.content_id, store, disk, devices);
    case wire::SelectionScope::kAll:
      members->all_ = true;
      return absl::OkStatus();
    case wire::SelectionScope::kWriter:
      return members->FindWritten(scope.writer, store, disk);
  }
  return absl::OkStatus();
}

// All blocks of a chain have one content.  Its id is the parent of the chain's first block; for the
// first block behind a hole, the id is in the block's metadata, in HOST or on disk, if it is known.
absl::Status ScopeMembers::FindContent(const Digest& content_id, const BlockStore& store,
                                       DiskTier* disk, const DeviceTable* devices) {
  const ChainForest forest(store.index(), LinksOf(devices));
  std::vector<uint64_t> heads;
  std::vector<ChainLink> unknown;  // blocks that are only on disk
  store.index().ForEachLink([&](const ChainLink& block) {
    if (!HasVariant(block.variant)) return;
    if (block.content == content_id || block.parent == IndexHash(block.variant, content_id)) {
      heads.push_back(block.name);
    } else if (block.disk_location != 0 && forest.IsHead(block)) {
      unknown.push_back(block);
    }
  });
  if (devices != nullptr) {
    const auto add = [&](VariantIndex variant, const Digest& digest, const Digest* parent) {
      if (parent != nullptr && *parent == content_id) heads.push_back(IndexHash(variant, digest));
    };
    devices->ForEach("", add);
  }
  absl::Status status;
  for (size_t at = 0; disk != nullptr && at < unknown.size(); at += kDescribedAtOnce) {
    const std::span some =
        std::span(unknown).subspan(at).first(std::min(kDescribedAtOnce, unknown.size() - at));
    status.Update(Describe(some, store, *disk, [&](const ChainLink& block, const auto& header) {
      if (header.content == content_id) heads.push_back(block.name);
    }));
  }
  names_ = forest.Below(std::move(heads));
  if (status.ok()) return status;
  return absl::UnavailableError(
      absl::StrCat("the contents of some blocks could not be read from disk; call again later: ",
                   status.message()));
}

// The records of blocks that are only on disk are read in batches while the index is walked.  These
// blocks are not all collected first, because they may be most blocks of the index.
absl::Status ScopeMembers::FindWritten(const BlockWriter& writer, const BlockStore& store,
                                       DiskTier* disk) {
  absl::Status status;
  std::vector<ChainLink> unknown;
  const auto ask = [&] {
    status.Update(Describe(unknown, store, *disk, [&](const ChainLink& block, const auto& header) {
      if (writer.Covers({.uid = header.writer_uid})) names_.insert(block.name);
    }));
    unknown.clear();
  };
  store.index().ForEachLink([&](const ChainLink& block) {
    if (!HasVariant(block.variant)) return;
    if (block.disk_location == 0) {
      if (writer.Covers(block.writer)) names_.insert(block.name);
    } else if (disk != nullptr && writer.engine == 0) {  // records do not contain the engine
      unknown.push_back(block);
      if (unknown.size() == kDescribedAtOnce) ask();
    }
  });
  if (!unknown.empty()) ask();
  if (status.ok()) return status;
  return absl::UnavailableError(
      absl::StrCat("the writers of some blocks could not be read from disk; call again later: ",
                   status.message()));
}

std::vector<std::pair<VariantIndex, Digest>> ScopeMembers::OnDevice(
    const BlockScope& scope, const DeviceTable& devices) const {
  std::vector<std::pair<VariantIndex, Digest>> blocks;
  if (scope.scope == wire::SelectionScope::kBlocks) {
    std::vector<DeviceTable::Name> named;
    for (const SelectedBlocks::Block& block : scope.blocks.blocks)
      named.emplace_back(block.variant, scope.blocks.names[block.name]);
    devices.ForEachHolder(scope.engine_id, named,
                          [&](size_t i, SessionId) { blocks.push_back(named[i]); });
  } else {
    devices.ForEach(scope.engine_id,
                    [&](VariantIndex variant, const Digest& digest, const Digest*) {
                      if (Contains(variant, digest)) blocks.emplace_back(variant, digest);
                    });
  }
  std::ranges::sort(blocks);  // several engines may have the same block
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

bool ScopeMembers::Contains(VariantIndex variant, const Digest& digest) const {
  return HasVariant(variant) && (all_ || names_.contains(IndexHash(variant, digest)));
}

}  // namespace larder
