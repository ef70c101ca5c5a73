#include "client/transport/transport.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"

namespace larder {

TimePoint DeadlineOf(const CallOptions& options) {
  // At most the longest deadline of a lease, so that the sum does not overflow.
  return SteadyNow() + std::min(options.deadline, std::chrono::milliseconds(wire::kDeadlineMaxMs));
}

BlockStatus StatusOfUnmapped(const absl::Status& status, BlockStatus if_internal) {
  return absl::IsInternal(status) ? if_internal : BlockStatus::kCancelled;
}

absl::Status CheckBatch(size_t blocks) {
  if (blocks <= wire::kKeysMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(blocks, " blocks in one call; at most ", wire::kKeysMax, ": split the batch"));
}

absl::Status CheckVariant(const VariantHandle& variant, const wire::Attached& session) {
  if (variant.session == session.session) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the variant was registered by another session: Register it in this session");
}

bool ShapeFits(const VariantSpec& variant, const PutBlock& block) {
  if (block.tokens.size() != variant.block_tokens) return false;
  if (block.segments.empty() || block.segments.size() != variant.layers) return false;
  for (const std::span<const std::byte> segment : block.segments) {
    if (segment.empty() || segment.size() > kSegmentBytesMax) return false;
  }
  return true;
}

bool ShapeFits(const VariantSpec& variant, const GetBlock& block) {
  if (block.segments.empty() || block.first_layer >= variant.layers) return false;
  if (block.segments.size() > variant.layers - block.first_layer) return false;
  for (const std::span<std::byte> segment : block.segments) {
    if (segment.empty() || segment.size() > kSegmentBytesMax) return false;
  }
  return true;
}

SegmentTable TableOf(const PutBlock& block) {
  SegmentTable table;
  table.segments.reserve(block.segments.size());
  for (const std::span<const std::byte> segment : block.segments) {
    table.segments.push_back({.bytes = static_cast<uint32_t>(segment.size())});
  }
  return table;
}

bool RangeFits(const SegmentTable& table, const GetBlock& block, SegmentRange* range) {
  const auto layers = static_cast<uint32_t>(block.segments.size());
  if (!table.Range(block.first_layer, layers, range).ok()) return false;
  if (range->count != layers) return false;  // several layers in a segment: not one span each
  for (uint32_t i = 0; i < range->count; ++i) {
    const Segment& segment = table.segments[range->first + i];
    if (segment.codec != Codec::kIdentity || segment.bytes != block.segments[i].size())
      return false;
  }
  return true;
}

}  // namespace larder
