// Moves blocks between a caller's memory and a store.  There is one interface for every transport,
// and one contract suite (tests/contract/transport_contract.h) for every implementation.  Read
// loopback_transport first.
//
// All implementations promise: a block is stored whole or not at all; the first writer of a key
// wins; Get does not report a block as kOk if its bytes failed a hash check (which of the blocks
// are checked depends on the implementation).  The interface does not promise that a block is still
// stored a moment later.
// Ownership: The caller owns the memory that Put reads and the memory that Get fills; a transport
// refers to neither after a call has returned.
// Thread-safety: All methods may be called from any thread.
// Limits: kKeysMax blocks in a call; for more, Put and Get return InvalidArgument.
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

  // Returns a status per block, kOk and kDuplicate being successes.  Of the others, kInvalid
  // usually says that the block is wrong, for example its sizes or digest, and kFull that a later
  // Put may succeed.  After an error of the whole call, such as DeadlineExceeded, any of the blocks
  // may have been stored, or may be stored soon.
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Put(
      const VariantHandle& variant, std::span<const PutBlock> blocks,
      const CallOptions& options) = 0;

  // Returns a status per block.  kInvalid usually says that layers or sizes are not those stored
  // (not every implementation detects that); kFull that a later Get may succeed; kCancelled that
  // the block did not arrive in time or its lease was revoked, for example.  The spans of a block
  // that is not kOk have undefined content.  Returns DeadlineExceeded if the daemon did not answer
  // a request in time.
  [[nodiscard]] virtual absl::StatusOr<std::vector<BlockStatus>> Get(
      const VariantHandle& variant, std::span<const GetBlock> blocks,
      const CallOptions& options) = 0;
};

// ---- what every implementation checks before it moves a byte

// Returns when a call that begins now has to end: after `options.deadline`, but within 10 minutes.
[[nodiscard]] TimePoint DeadlineOf(const CallOptions& options);
// Returns the status of a block whose memory could not be mapped: `if_internal` if `status` is
// Internal (the daemon named impossible memory), otherwise kCancelled.
[[nodiscard]] BlockStatus StatusOfUnmapped(const absl::Status& status, BlockStatus if_internal);
// Returns InvalidArgument if `blocks` is more than one call may name (kKeysMax).
[[nodiscard]] absl::Status CheckBatch(size_t blocks);
// Returns InvalidArgument if another session registered the variant, because the index of `variant`
// is that session's.
[[nodiscard]] absl::Status CheckVariant(const VariantHandle& variant,
                                        const wire::Attached& session);
// Returns true if the block has as many tokens as the variant's blocks and one segment for each
// layer, and the segments have valid sizes.
[[nodiscard]] bool ShapeFits(const VariantSpec& variant, const PutBlock& block);
// Returns true if the wanted layers are inside the block and the spans have valid sizes.
[[nodiscard]] bool ShapeFits(const VariantSpec& variant, const GetBlock& block);
// Returns a table with an unencoded segment for each layer, without hashes.  REQUIRES: ShapeFits.
[[nodiscard]] SegmentTable TableOf(const PutBlock& block);
// Sets `range` to the segments of `table` that hold the wanted layers.  Returns false unless there
// is one segment for each span of the block, of the span's size and not encoded.
[[nodiscard]] bool RangeFits(const SegmentTable& table, const GetBlock& block, SegmentRange* range);

}  // namespace larder
