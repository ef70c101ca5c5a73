// Blocks through shared memory.  A read copies out of the mapped slabs, or out of the staging
// segment into which the daemon copied the blocks.  A write goes straight into reserved extents
// (mapped) or through the staging segment (staged).  The session's read and write mode say which.
//
// A read takes a lease for a window (some blocks of the batch), copies them, checks hashes if the
// daemon sent them (of the bytes that arrived, not of the source), and then checks the revocation
// word: if it has changed, the blocks that were copied are kCancelled.  While one window is copied,
// the next has usually been requested already.
// Encoded blocks, if the session accepts them, are decoded into the caller's memory, and their
// hashes are checked.
// A write publishes windows (mapped) or parts of them (staged) as they are ready.  It collects the
// answers at the end, or earlier when too many publishes are unanswered or it needs memory that
// they hold.
//
// A read by copies checks no revocation word: a block that the daemon answered for is complete.
//
// Ownership: None; core and pool outlive it.
// Thread-safety: All methods may be called from any thread.
// Limits: If the daemon sent no segment table, a read checks only the size of the payload, not of
// each segment.  A batch may be larger than the process's share of the pool, because it is read or
// written window by window.
#pragma once

#include "client/session/session_core.h"
#include "client/transport/copy_pool.h"
#include "client/transport/transport.h"
#include "storage/memory/copy_kernels.h"

namespace larder {

class ShmTransport final : public Transport {
 public:
  // `accept_encoded` is SessionOptions::accept_encoded.  REQUIRES: The core was started, and its
  // session is not in stream mode.
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

// Returns the life, in milliseconds, of a lease or reservation that serves a call with these
// options (CallOptions::life).
[[nodiscard]] uint32_t DeadlineMs(const CallOptions& options);

}  // namespace larder
