// The messages of the service Admin (proto/larder/v1/admin.proto), except those of Drain, as plain
// values, with types that cannot be confused.
//
// Values only: no ownership beyond their members, no threads.  The proto states units, defaults,
// limits and errors.  The limits below are what the client accepts in one answer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "storage/types.h"

namespace larder::wire {

inline constexpr size_t kTenantsMax = 1024;
inline constexpr size_t kMetricsMax = 4096;  // counters, and as many gauges
inline constexpr size_t kConfigBytesMax = 1 << 20;
inline constexpr size_t kSharesMax = 256;        // kinds
inline constexpr size_t kShareHoldersMax = 256;  // of one kind

struct TenantStats {
  std::string tenant;
  ByteCount pool_limit, pool_online, pool_free, pool_stored, pool_reserved, pool_leased,
      pool_quarantined;
  uint64_t blocks = 0, leases = 0, reservations = 0, pins = 0, sessions = 0;
  ByteCount index_bytes, metadata_bytes;
  std::string pages, durability;
  std::string pool_stalled;  // why the host gave the pool no more memory, or empty
  friend bool operator==(const TenantStats&, const TenantStats&) = default;
};

// How much of one kind of thing, such as leases, all callers hold.  `holders` names those that hold
// most, the largest first.
struct ShareUse {
  struct Holder {
    std::string who;
    uint64_t held = 0;
    friend bool operator==(const Holder&, const Holder&) = default;
  };
  std::string kind;
  uint64_t held = 0, limit = 0, refused = 0;
  std::vector<Holder> holders;
  friend bool operator==(const ShareUse&, const ShareUse&) = default;
};

struct NodeStats {
  std::string version, boot_id;
  double uptime_s = 0;
  bool draining = false;
  std::vector<TenantStats> tenants;
  // By metric name with its labels; docs/metrics.md lists them.
  std::map<std::string, uint64_t> counters;
  std::map<std::string, double> gauges;
  std::vector<ShareUse> shares;
  friend bool operator==(const NodeStats&, const NodeStats&) = default;
};

struct VerifyQuery {
  Tier tier = Tier::kHost;
  uint64_t bytes_per_s = 0;  // 0 sets no limit
  friend bool operator==(const VerifyQuery&, const VerifyQuery&) = default;
};

struct VerifyProgress {
  uint64_t blocks = 0, blocks_done = 0;
  ByteCount bytes, bytes_done;
  uint64_t whole = 0, damaged = 0, missing = 0, unread = 0;
  friend bool operator==(const VerifyProgress&, const VerifyProgress&) = default;
};

}  // namespace larder::wire
