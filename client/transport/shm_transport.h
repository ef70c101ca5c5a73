// Blocks through shared memory: reads are copied out of the mapped slabs, or out of the staging
// segment, where the daemon laid them (copied); writes go straight into reserved extents (mapped)
// or by way of the staging segment (staged), as the session was attached.
//
// A read takes a lease for a window of blocks, copies, checks hashes where a table came along (on
// the bytes that arrived, not on the source), then looks at the revocation word: when it no longer
// holds, all of the window is kCancelled.  While a window is copied the next one's lease is already
// asked for.
// What comes encoded, where that is accepted, is decoded into the caller's memory, and checked
// before and after.
// A write publishes windows (mapped) or pieces (staged) as they are ready, and collects the answers
// at the end.
//
// By copies there is no word to look at: what the daemon answered for is whole.
//
// Ownership: none; core and pool outlive it.  Thread-safety: all methods from any thread.
// Limits: without a table only the sum of a read's padded segment sizes is checked, not each of
// them. A batch larger than the session's share of the pool still goes through, window by window.
#pragma once

#include "client/session/session_core.h"
#include "client/transport/copy_pool.h"
#include "client/transport/transport.h"
#include "storage/memory/copy_kernels.h"

namespace larder {

class ShmTransport final : public Transport {
 public:
  // REQUIRES: the core was started, mapped or staged.  `accept_encoded`: as SessionOptions says.
  ShmTransport(SessionCore& core, const CopyKernel& kernel, CopyPool& pool,
               bool accept_encoded = false)
      : core_(core), kernel_(kernel), pool_(pool), accept_encoded_(accept_encoded) {}

  [[nodiscard]] const char* name() const override {
    if (core_.reads_copied()) return "shm staged, copied";
    return core_.writes_staged() ? "shm staged" : "shm mapped";
  }
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Put(const VariantHandle& variant,
                                                             std::span<const PutBlock> blocks,
                                                             const CallOptions& options) override;
  [[nodiscard]] absl::StatusOr<std::vector<BlockStatus>> Get(const VariantHandle& variant,
                                                             std::span<const GetBlock> blocks,
                                                             const CallOptions& options) override;

 private:
  SessionCore& core_;
  const CopyKernel kernel_;
  CopyPool& pool_;
  const bool accept_encoded_;
};

// Milliseconds left for a lease or reservation that serves a call with this deadline.
[[nodiscard]] uint32_t DeadlineMs(const CallOptions& options);

}  // namespace larder
