// Device memory that attached processes share with one another.  DeviceShares keeps the descriptor
// or handle that a process exported, for processes of the same uid that have its ticket, which Add
// returns.
//
// It is a broker only: it calls no device driver, and does not know whether a descriptor or handle
// is device memory.  The driver checks that when a process imports it.
//
// Ownership: it owns the descriptors, and closes them when they are dropped.
// Thread-safety: all methods may be called from any thread.
// Locks: mu_ is a leaf.  Descriptors of clients are closed without it.
// Lifecycle: Add -> Open ... -> Drop or DropProcess.
// Limits: see Options.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/sideband_frames.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class DeviceShares {
 public:
  struct Options {
    uint32_t process_shares_max = 256;
    uint32_t shares_max = 4096;
  };
  explicit DeviceShares(const Options& options) : options_(options) {}
  DeviceShares(const DeviceShares&) = delete;
  DeviceShares& operator=(const DeviceShares&) = delete;

  struct Share {
    ByteCount bytes;  // as the owner declared; not checked
    std::variant<FileDescriptor, DeviceHandle> memory;
  };
  // Keeps `share` and returns its new ticket.  Returns ResourceExhausted if a limit is reached.
  [[nodiscard]] absl::StatusOr<ShareTicket> Add(ProcessId owner, uid_t uid, Share share);
  // Returns the share, with a duplicate of its descriptor (if it has one) that the caller owns.
  // Returns NotFound if there is no such ticket, or if it belongs to a process of another uid.
  [[nodiscard]] absl::StatusOr<Share> Open(uid_t uid, const ShareTicket& ticket) const;
  // Drops what this process shares under the ticket.  Returns false if that is nothing.
  bool Drop(ProcessId owner, const ShareTicket& ticket);
  void DropProcess(ProcessId owner);

  [[nodiscard]] size_t count() const;

 private:
  struct Entry {
    ProcessId owner;
    uid_t uid = 0;
    Share share;
  };
  struct TicketHash {  // the first bytes of the ticket, which is random
    size_t operator()(const ShareTicket& ticket) const;
  };
  const Options options_;
  mutable Mutex mu_;
  absl::flat_hash_map<ShareTicket, Entry, TicketHash> entries_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<ProcessId, uint32_t> per_process_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
