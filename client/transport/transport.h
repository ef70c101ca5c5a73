// Moves whole blocks between a caller's memory and a store.  There is one interface for every
// transport, and one contract suite (tests/contract/transport_contract.h) for every implementation.
// Read loopback_transport first.
//
// All implementations promise: a block is stored whole or not at all; the first writer of a name
// wins; a block that Get reports as kOk has, bit for bit, the bytes that some Put was given.  None
// promises that a block is still stored a moment later.
// Ownership: The caller owns the memory that Put reads and the memory that Get fills; a transport
// refers to neither after a call has returned.
// Thread-safety: All methods may be called from any thread.
// Limits: kKeysMax blocks in a call, otherwise InvalidArgument.  An error of one block is its
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

  // Returns per block kOk, kDuplicate (a success), kFull, kInvalid (sizes, token count, or a digest
  // that does not follow), kCancelled (deadline), or kNotHeld (the daemon granted an impossible
  // extent).
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Put(
      const VariantHandle& variant, std::span<const PutBlock> blocks,
      const CallOptions& options) = 0;

  // Returns per block kOk, kMissing, kInvalid (layers or sizes are not those stored; if a grant has
  // no table, only a different sum of the sizes is detected), kDamaged, kFull, kUnsupported (larger
  // than the staging segment), or kCancelled.  The spans of a block that is not kOk hold anything.
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Get(
      const VariantHandle& variant, std::span<const GetBlock> blocks,
      const CallOptions& options) = 0;
};

// ---- what every implementation checks before it moves a byte

// Returns when a call that begins now has to end.
[[nodiscard]] TimePoint DeadlineOf(const CallOptions& options);
// Returns the status of a block whose memory could not be mapped: `if_internal` if the daemon named
// memory that does not exist, otherwise kCancelled.
[[nodiscard]] BlockStatus StatusOfUnmapped(const absl::Status& status, BlockStatus if_internal);
// Returns InvalidArgument if a call names more blocks than one call may.
[[nodiscard]] absl::Status CheckBatch(size_t blocks);
// Returns InvalidArgument if another session registered the variant: its index means something else
// in this session.
[[nodiscard]] absl::Status CheckVariant(const VariantHandle& variant,
                                        const wire::Attached& session);
// Returns true if the block has the tokens and segments of the variant, and the segments have valid
// sizes.
[[nodiscard]] bool ShapeFits(const VariantSpec& variant, const PutBlock& block);
// Returns true if the wanted layers are inside the block and the spans have valid sizes.
[[nodiscard]] bool ShapeFits(const VariantSpec& variant, const GetBlock& block);
// Returns one identity segment per layer, not hashed.  REQUIRES: ShapeFits.
[[nodiscard]] SegmentTable TableOf(const PutBlock& block);
// Sets `range` to the segments of `table` that hold the wanted layers, one per span and of its
// size.  Returns false if there is no such range; the block is then kInvalid.
[[nodiscard]] bool RangeFits(const SegmentTable& table, const GetBlock& block, SegmentRange* range);

}  // namespace larder
