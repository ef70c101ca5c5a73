// Device memory that attached processes share with one another: descriptors and handles on their
// way from who exported to who has the ticket.
//
// A broker only: it makes no call of any device's driver, and does not know whether what it was
// given is device memory.  Whoever imports it asks the driver.
//
// Ownership: the descriptors, closed when dropped.  Thread-safety: all methods from any thread.
// Lifecycle: Add -> Open ... -> Drop or DropProcess.
// Limits: Options.
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
    ByteCount bytes;  // as the owner says
    std::variant<FileDescriptor, DeviceHandle> memory;
  };
  // ResourceExhausted: a limit.
  [[nodiscard]] absl::StatusOr<ShareTicket> Add(ProcessId owner, uid_t uid, Share share);
  // With a descriptor of the caller's own.  NotFound: no such ticket, or shared by another uid:
  // what a process may not open does not exist for it.
  [[nodiscard]] absl::StatusOr<Share> Open(uid_t uid, const ShareTicket& ticket) const;
  // False: this process shares nothing by that ticket.
  bool Drop(ProcessId owner, const ShareTicket& ticket);
  void DropProcess(ProcessId owner);

  [[nodiscard]] size_t count() const;

 private:
  struct Entry {
    ProcessId owner;
    uid_t uid = 0;
    Share share;
  };
  struct TicketHash {  // uniform already
    size_t operator()(const ShareTicket& ticket) const;
  };
  const Options options_;
  mutable Mutex mu_;
  absl::flat_hash_map<ShareTicket, Entry, TicketHash> entries_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<ProcessId, uint32_t> per_process_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
