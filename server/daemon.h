// The running daemon.  main.cc creates the pool, the block store and the disk tier; Daemon opens
// the socket files and connects all parts that serve engines, routers and operators.
//
// Ownership: the pool, store, disk tier, counters and clock outlive it.
// Thread-safety: any thread may call Drain, Wait, unspilled and gauges; one thread calls Stuck.
// Lifecycle: Start (on OK the daemon serves) -> Drain -> Wait (returns when drained) -> destroyed.
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
  // The existing directory of data.sock, sideband.sock, control.sock and admin.sock.
  std::string socket_dir;
  mode_t data_socket_mode = 0660;  // of data.sock and sideband.sock; admin.sock is 0600
  mode_t control_socket_mode = 0660;
  std::optional<gid_t> control_socket_group;  // nullopt: the daemon's own group
  // Descriptors that already listen at the four socket files, whose modes the service manager
  // (systemd) chose; -1 makes the daemon create that socket.
  struct Listeners {
    int data = -1, sideband = -1, control = -1, admin = -1;
  };
  Listeners listeners;  // borrowed
  struct Connections {  // how many there may be at once
    ConnectionShares::Limits data{.all = 1024, .per_uid = 512, .per_process = 256};
    ConnectionShares::Limits control{.all = 256, .per_uid = 256, .per_process = 64};
    ConnectionShares::Limits admin{.all = 16, .per_uid = 16, .per_process = 8};
    ConnectionShares::Limits sideband{.all = 1024, .per_uid = 1024, .per_process = 1024};
  };
  Connections connections;
  std::vector<uid_t> trusted_uids;  // uids that may map the pool writable
  size_t sessions_max = 1024;
  size_t calls_max = 256;                  // calls of Cache at once, except WatchEvents
  ByteCount memory_limit = MiB(256);       // of messages under way
  int rpc_threads_max = 0;                 // 0: gRPC decides
  size_t session_threads = 1;              // of session sockets; 0 disables session sockets
  uint32_t check_one_in = 64;              // one read from HOST in so many is checked; 0: none
  size_t copy_threads = 1;                 // for staged publishes, copied reads and long messages
  ByteCount staging_bytes_max = MiB(256);  // per process
  ByteCount staging_uid_bytes_max = MiB(512), staging_total_bytes_max = GiB(1);
  double host_bytes_per_s = 10e9;        // for load estimates
  double disk_bytes_per_s = 1e9;         // for load estimates
  size_t disk_readers = 4;               // threads that read from disk
  ByteCount disk_verify_rate = MiB(8);   // bytes per second; 0 disables verification
  ByteCount host_verify_rate = MiB(16);  // bytes per second; 0 disables verification
  std::string boot_id;                   // a fresh UUID
  // The functions below report problems to an operator.  Each may be empty, and may be called from
  // any thread.  `warn` reports problems with the disk.
  std::function<void(const std::string&)> warn;
  // Reports blocks that the verification of the pool found damaged.
  std::function<void(const std::string&)> warn_of_damage;
  // Reports problems with the sockets.  The same text may recur often.
  std::function<void(const std::string&)> warn_sockets;
  // Reports limits that callers have reached, such as a full share; possibly often.  One uid causes
  // few different texts in `what`.
  std::function<void(const std::string& what, const std::string& why)> warn_shares;
  // Reports that `who` uses an engine id that belongs to another caller; `what` says so in a
  // sentence.  Possibly often.
  std::function<void(const std::string& who, const std::string& what)> warn_engines;
  std::string version;
  std::string config;  // as --print-config prints it; for Admin.Config
};

class Daemon {
 public:
  // Returns an error if a socket file cannot be opened, or if a part of the daemon cannot start,
  // for example because no descriptor is left.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options,
                                                                     BlockStore& store,
                                                                     Counters& counters,
                                                                     const Clock& clock,
                                                                     DiskTier* disk = nullptr);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Begins to read what an earlier daemon left on disk, while this one serves.
  // TierWorker::StartRecovery says when `done` is called.  Without a disk this does nothing.
  void StartRecovery(TierWorker::Done done);

  // Starts to drain the daemon: health turns NOT_SERVING, and the clients of the sessions are told
  // to finish.  gRPC stops when sessions and calls have ended, or shortly after `limit`.  Then the
  // daemon waits, for what remains of `limit`, until the blocks that wait for the disk are written.
  // Returns how many sessions there were.  Later calls have no effect and return 0.
  size_t Drain(std::chrono::milliseconds limit);
  // Waits until a drain is complete.
  void Wait();
  // Returns how many blocks wait to be written to disk; 0 without a disk.
  [[nodiscard]] uint64_t unspilled() const;

  // For a watchdog: returns the names of essential parts that have not answered since the last call
  // or cannot accept connections, and asks the parts again.  During a drain only the housekeeping
  // thread is checked.  A disk that does not answer is not reported here.  One thread calls it.
  [[nodiscard]] std::vector<std::string> Stuck();

  // Returns the present state.
  [[nodiscard]] Gauges gauges() const;

 private:
  struct Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace larder
