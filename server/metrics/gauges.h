// The present state of the daemon, mostly as plain numbers.
//
// Daemon::gauges() fills it for each scrape of /metrics and each Admin.Stats; the table of metrics
// (metrics_table.h) names its numbers.  Numbers that only grow are here if their owner counts them,
// such as the blocks that the store evicted; other such numbers are in counters.h.
// Ownership: values, except what `sideband` and `sockets` point to, which lives as long as the
// daemon.
// Thread-safety: a value; the counters behind `sideband` and `sockets` are atomic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/connections/connection_shares.h"
#include "server/connections/descriptor_closer.h"
#include "server/runtime/shares.h"
#include "storage/store/block_store.h"
#include "storage/tiering/host_verifier.h"
#include "storage/tiering/tier_worker.h"
#include "storage/types.h"

namespace larder {

struct SidebandCounters;  // server/processes/sideband_connection.h

// Counters of the socket files that gRPC serves.
struct SocketCounters {
  ConnectionCounters data, control, admin;
};

struct Gauges {
  BlockStore::Stats store;
  struct Sessions {
    size_t mapped = 0, staged = 0, stream = 0;
    [[nodiscard]] size_t all() const { return mapped + staged + stream; }
    size_t reading_mapped = 0, reading_copied = 0, reading_stream = 0;
  } sessions;  // by write mode, and by read mode
  double started_unix_s = 0;
  std::string pages;         // the kind of pages of the pool
  std::string pool_stalled;  // why the latest growth of the pool failed, or empty
  ByteCount quarantined;
  size_t device_blocks = 0;
  size_t promises = 0;
  ByteCount promised;  // bytes of the blocks of promises
  size_t processes = 0;
  ByteCount staging;
  bool draining = false;
  std::optional<TierWorker::Stats> disk;  // nullopt if there is no disk
  HostVerifier::Stats host_verifier;
  double host_verify_s = 0;  // about how long damage may stay unnoticed; 0 if not verified
  const SidebandCounters* sideband = nullptr;
  std::vector<Shares::Use> shares;  // by kind
  const SocketCounters* sockets = nullptr;
  struct Incoming {
    uint64_t held = 0, limit = 0;  // bytes of incomplete messages
  } incoming;
  struct Descriptors {
    size_t open = 0, limit = 0;
  } descriptors;
  DescriptorCloser::Counts closer;
};

}  // namespace larder
