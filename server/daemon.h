// The running daemon: socket files, services, sideband, sessions, housekeeping.  main.cc builds its
// parts and this wires them together; tests and benches do the same in a child process.
//
// Ownership: refers to pool, store, disk tier, counters and clock, which outlive it; owns all else.
// Thread-safety: Drain and Wait from any thread.
// Lifecycle: Start (serves when it returns) -> Drain -> Wait (returns when drained) -> destroyed.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "server/connections/connection_shares.h"
#include "server/metrics/counters.h"
#include "server/metrics/gauges.h"
#include "server/sessions/session.h"
#include "storage/clock.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

struct DaemonOptions {
  // data.sock, sideband.sock, control.sock, admin.sock are made in it; it must exist
  std::string socket_dir;
  mode_t data_socket_mode = 0660;  // of data.sock and sideband.sock; admin.sock is 0600
  mode_t control_socket_mode = 0660;
  std::optional<gid_t> control_socket_group;  // nullopt: the daemon's own
  struct Listeners {  // sockets that listen there already, whose modes are not ours; -1: it binds
    int data = -1, sideband = -1, control = -1, admin = -1;
  };
  Listeners listeners;  // borrowed
  struct Connections {  // at once
    ConnectionShares::Limits data{.all = 1024, .per_uid = 512, .per_process = 256};
    ConnectionShares::Limits control{.all = 256, .per_uid = 256, .per_process = 64};
    ConnectionShares::Limits admin{.all = 16, .per_uid = 16, .per_process = 8};
    ConnectionShares::Limits sideband{.all = 1024, .per_uid = 1024, .per_process = 1024};
  };
  Connections connections;
  std::vector<uid_t> trusted_uids;  // may map the pool writable
  size_t sessions_max = 1024;
  size_t calls_max = 256;                  // unary calls under way at once
  ByteCount memory_limit = MiB(256);       // of messages under way
  int rpc_threads_max = 0;                 // 0: gRPC decides
  size_t session_threads = 1;              // of session sockets; 0: none are handed out
  uint32_t check_one_in = 64;              // host reads that are checked; 0 = none
  size_t copy_threads = 1;                 // of staged publishes, and long messages
  ByteCount staging_bytes_max = MiB(256);  // per process
  ByteCount staging_uid_bytes_max = MiB(512), staging_total_bytes_max = GiB(1);
  double host_bytes_per_s = 10e9;        // for load estimates
  double disk_bytes_per_s = 1e9;         // likewise
  size_t disk_readers = 4;               // threads that read from disk
  ByteCount disk_verify_rate = MiB(8);   // bytes a second; 0: off
  ByteCount host_verify_rate = MiB(16);  // likewise
  std::string boot_id;                   // a fresh UUID
  // What an operator should know of the disk; from any thread.  Empty: nobody listens.
  std::function<void(const std::string&)> warn;
  // Likewise of blocks in the pool that are not what was put.
  std::function<void(const std::string&)> warn_of_damage;
  // The same of the sockets; may repeat itself often.
  std::function<void(const std::string&)> warn_sockets;
  // The same of shares that are full; `what` is the same text for the same uid and kind.
  std::function<void(const std::string& what, const std::string& why)> warn_shares;
  // An engine id that another one's sessions have: by whom.  Often, perhaps.
  std::function<void(const std::string& who, const std::string& what)> warn_engines;
  std::string version;
  std::string config;  // as --print-config prints it; for Admin.Config
};

class Daemon {
 public:
  // Unavailable: a socket cannot be bound, with which and why.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options,
                                                                     BlockStore& store,
                                                                     Counters& counters,
                                                                     const Clock& clock,
                                                                     DiskTier* disk = nullptr);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Finds out what a former process left on disk, while it serves; a no-op without one.
  void StartRecovery(TierWorker::Done done);

  // Health turns NOT_SERVING, every session is told, and within `limit` (or when all sessions have
  // ended) the servers stop.  What is left of the limit is for blocks that wait to be written to
  // disk.  Answers how many sessions were told.  Idempotent: the first limit counts.
  size_t Drain(std::chrono::milliseconds limit);
  // Returns when drained.
  void Wait();
  // Blocks that wait to be written to disk.
  [[nodiscard]] uint64_t unspilled() const;

  // For a watchdog: which parts that everybody needs did not come round since the last call, and
  // asks them all again.  Empty: it works, as far as the last call asked.  A disk that does not
  // answer is none of them.  From one thread.
  [[nodiscard]] std::vector<std::string> Stuck();

  // Of this instant; from any thread.
  [[nodiscard]] Gauges gauges() const;

 private:
  struct Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace larder
