// Moves whole blocks between a caller's memory and a store.  One interface for every road, one
// contract suite (tests/contract/transport_contract.h) for every implementation; loopback_transport
// is the one to read first.
//
// What all of them promise: a block is stored whole or not at all; the first writer of a name wins;
// what Get calls kOk is what some Put was given, bit by bit.  What none promises: that a block is
// still there a moment later.
// Ownership: the bytes are the caller's on both sides; nothing is kept after a call returned.
// Thread-safety: all methods from any thread.
// Limits: kKeysMax blocks a call, else InvalidArgument.  What is wrong with one block is its
// BlockStatus.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "storage/clock.h"

namespace larder {

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual const char* name() const = 0;

  // Per block kOk, kDuplicate (a success), kFull, kInvalid (sizes, token count, or a digest that
  // does not follow), kCancelled (deadline).
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Put(
      const VariantHandle& variant, std::span<const PutBlock> blocks,
      const CallOptions& options) = 0;

  // Per block kOk, kMissing, kInvalid (layers or sizes are not those stored; where a grant has no
  // table, only that the sizes sum up to another payload is seen), kDamaged, kFull, kCancelled.
  // The spans of a block that is not kOk hold anything.
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Get(
      const VariantHandle& variant, std::span<const GetBlock> blocks,
      const CallOptions& options) = 0;
};

// ---- what every implementation checks before it moves a byte

// When a call that begins now has to end.
[[nodiscard]] TimePoint DeadlineOf(const CallOptions& options);
// What became of a block whose memory could not be mapped.  Internal: the daemon named what is not
// there, which is not to be believed.
[[nodiscard]] BlockStatus StatusOfUnmapped(const absl::Status& status, BlockStatus if_internal);
// InvalidArgument when a call names more blocks than one may.
[[nodiscard]] absl::Status CheckBatch(size_t blocks);
// InvalidArgument when another session registered the variant: its index means something else here.
[[nodiscard]] absl::Status CheckVariant(const VariantHandle& variant,
                                        const wire::Attached& session);
// As many tokens and segments as the variant says, segments of a legal size.
[[nodiscard]] bool ShapeFits(const VariantSpec& variant, const PutBlock& block);
// Wanted layers are inside the block, spans of a legal size.
[[nodiscard]] bool ShapeFits(const VariantSpec& variant, const GetBlock& block);
// One identity segment per layer, not hashed.  REQUIRES: ShapeFits.
[[nodiscard]] SegmentTable TableOf(const PutBlock& block);
// Segments of `table` that hold the wanted layers, one span each and of its size.  False: kInvalid.
[[nodiscard]] bool RangeFits(const SegmentTable& table, const GetBlock& block, SegmentRange* range);

}  // namespace larder
