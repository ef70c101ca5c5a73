#include "client/transport/loopback_transport.h"

#include <cstring>
#include <utility>

#include "storage/status_macros.h"

namespace larder {

BlockStatus LoopbackTransport::PutOne(const VariantHandle& variant, const PutBlock& block) {
  if (!ShapeFits(variant.spec, block)) return BlockStatus::kInvalid;
  const std::vector<Digest> chain = Chain(block.parent, block.tokens);
  if (chain.empty() || chain.back() != block.digest) return BlockStatus::kInvalid;
  const auto [entry, added] = blocks_.try_emplace(BlockKey{variant.id, block.digest});
  if (!added) return BlockStatus::kDuplicate;
  entry->second.table = TableOf(block);
  for (const std::span<const std::byte> segment : block.segments) {
    entry->second.payload.append(reinterpret_cast<const char*>(segment.data()), segment.size());
  }
  return BlockStatus::kOk;
}

BlockStatus LoopbackTransport::GetOne(const VariantHandle& variant, const GetBlock& block) {
  if (!ShapeFits(variant.spec, block)) return BlockStatus::kInvalid;
  const auto found = blocks_.find(BlockKey{variant.id, block.digest});
  if (found == blocks_.end()) return BlockStatus::kMissing;
  const Stored& stored = found->second;
  SegmentRange range;
  if (!RangeFits(stored.table, block, &range)) return BlockStatus::kInvalid;
  size_t offset = 0;
  for (uint32_t i = 0; i < range.first; ++i) offset += stored.table.segments[i].bytes;
  for (const std::span<std::byte> segment : block.segments) {
    std::memcpy(segment.data(), stored.payload.data() + offset, segment.size());
    offset += segment.size();
  }
  return BlockStatus::kOk;
}

absl::StatusOr<std::vector<BlockStatus>> LoopbackTransport::Put(const VariantHandle& variant,
                                                                std::span<const PutBlock> blocks,
                                                                const CallOptions& /*options*/) {
  LARDER_RETURN_IF_ERROR(CheckBatch(blocks.size()));
  std::vector<BlockStatus> result;
  result.reserve(blocks.size());
  MutexLock lock(mu_);
  for (const PutBlock& block : blocks) result.push_back(PutOne(variant, block));
  return result;
}

absl::StatusOr<std::vector<BlockStatus>> LoopbackTransport::Get(const VariantHandle& variant,
                                                                std::span<const GetBlock> blocks,
                                                                const CallOptions& /*options*/) {
  LARDER_RETURN_IF_ERROR(CheckBatch(blocks.size()));
  std::vector<BlockStatus> result;
  result.reserve(blocks.size());
  MutexLock lock(mu_);
  for (const GetBlock& block : blocks) result.push_back(GetOne(variant, block));
  return result;
}

}  // namespace larder
