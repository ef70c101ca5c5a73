// How the descriptors of the process are shared out, so that what clients take is never what the
// daemon's own files need.
//
// The caller says how many there are and what is in use.  Does not bound what trusted processes
// share of device memory (server/processes/device_shares.h has limits of its own).
// Ownership: values.  Thread-safety: a pure function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/connections/connection_shares.h"

namespace larder {

struct DescriptorNeeds {
  size_t limit = 0;                    // RLIMIT_NOFILE
  size_t in_use = 0;                   // at the start, by what stays open
  size_t files = 0;                    // that the disk may still open
  size_t sessions_max = 0;             // wanted
  size_t connections_per_process = 0;  // wanted, of data.sock and sideband.sock; 0: by the limit
};

struct DescriptorBudget {
  static constexpr size_t kDataMax = 4096;  // gRPC takes 13 KiB for each
  static constexpr size_t kControlMax = 256;
  static constexpr size_t kAdminMax = 16;
  static constexpr size_t kKeptMin = 64;  // for what opens and closes again
  static constexpr size_t kFreeMin = 48;  // less serves no client

  ConnectionShares::Limits data, control, admin, sideband;
  size_t sessions_max = 0;  // may be less than wanted
};

// FailedPrecondition: too few to serve, with how many it takes.
[[nodiscard]] absl::StatusOr<DescriptorBudget> ShareOutDescriptors(const DescriptorNeeds& needs);

// Of this process, now; 0 where /proc does not say.
[[nodiscard]] size_t OpenDescriptors();
// The soft limit.
[[nodiscard]] size_t DescriptorLimit();

}  // namespace larder
