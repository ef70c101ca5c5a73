// Divides the file descriptors of the process between clients and the daemon, so that the
// connections and sessions of clients leave the descriptors that the daemon's own files need.
//
// The caller passes how many descriptors there may be and how many are in use.  The budget does not
// cover descriptors of device memory that trusted processes share (server/processes/device_shares.h
// has limits of its own).
// Ownership: values.  Thread-safety: any thread may call these functions; ShareOutDescriptors is
// pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/connections/connection_shares.h"

namespace larder {

struct DescriptorNeeds {
  size_t limit = 0;                    // RLIMIT_NOFILE
  size_t in_use = 0;                   // open at the start, and staying open
  size_t files = 0;                    // files that the disk may still open
  size_t sessions_max = 0;             // as configured
  size_t connections_per_process = 0;  // as configured, for data.sock and sideband.sock; 0: derived
};

struct DescriptorBudget {
  static constexpr size_t kDataMax = 4096;  // gRPC takes 13 KiB for each connection
  static constexpr size_t kControlMax = 256;
  static constexpr size_t kAdminMax = 16;
  static constexpr size_t kKeptMin = 64;  // for files that the daemon opens for a short time
  static constexpr size_t kFreeMin = 48;  // least for clients; with fewer ShareOutDescriptors fails

  ConnectionShares::Limits data, control, admin, sideband;
  size_t sessions_max = 0;  // may be less than configured
};

// Returns FailedPrecondition, whose text names a limit of open files that suffices, if fewer than
// kFreeMin descriptors would be left for clients.
[[nodiscard]] absl::StatusOr<DescriptorBudget> ShareOutDescriptors(const DescriptorNeeds& needs);

// Returns how many descriptors this process has open, or 0 if /proc cannot be read.
[[nodiscard]] size_t OpenDescriptors();
// Returns the soft limit of open files (RLIMIT_NOFILE), or 0 if the kernel does not report it.
[[nodiscard]] size_t DescriptorLimit();

}  // namespace larder
