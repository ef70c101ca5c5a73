// The sideband: the socket file at which processes of this host attach and get descriptors.
//
// Listens, accepts within limits, and runs all SidebandConnections on one thread.  Does not make
// directories and does not keep two daemons apart beyond refusing a path at which one listens; the
// file's mode is the authority over who may connect, made before the first connection is possible.
// A socket that breaks, or whose file is taken away, is opened again
// (server/connections/doorkeeper.h).
//
// Ownership: the socket file (unlinked at the end if it is still ours), unless it was handed a
// listener; the connections, the thread. Borrows host, processes and staging, which outlive it.
// Thread-safety: Create, Start, destruction from one thread; all else from any.
// Lifecycle: Create (the path is taken, connections wait) -> Start -> destroyed (closes all).  The
// daemon's death callback calls OnProcessDeath, so ProcessTable::Stop comes before the destruction.
// Limits: Options.  Needs Linux 5.3, SOCK_SEQPACKET, a path below 108 bytes.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "server/connections/connection_shares.h"
#include "server/connections/doorkeeper.h"
#include "server/processes/device_shares.h"
#include "server/processes/process_table.h"
#include "server/processes/sideband_connection.h"
#include "server/processes/staging_table.h"
#include "server/runtime/heartbeat.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class Sideband {
 public:
  struct Options {
    std::string path;
    mode_t mode = 0660;
    int listener = -1;  // listens at the path already; borrowed, and its file and mode are not ours
    std::vector<uid_t> trusted_uids = {geteuid()};  // may map slabs writable; none: nobody may
    ConnectionShares::Limits connections{.all = 1024, .per_uid = 256, .per_process = 64};
    std::chrono::milliseconds handshake_deadline{5'000};
    Doorkeeper::Report report = {};  // called on its thread
    [[nodiscard]] absl::Status Validate() const;
  };

  // FailedPrecondition: somebody listens at the path, or what lies there is no socket.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Sideband>> Create(const Options& options,
                                                                        SidebandHost& host,
                                                                        ProcessTable& processes,
                                                                        StagingTable& staging);
  ~Sideband();
  Sideband(const Sideband&) = delete;
  Sideband& operator=(const Sideband&) = delete;

  void Start();

  // Drops its staging segments and its shares before it returns, and soon its connections, which a
  // forked child may keep open.
  void OnProcessDeath(ProcessId process);

  // Returns false while its socket is broken and could not be opened again.
  [[nodiscard]] bool Accepting() const { return counters_.door.broken == 0; }

  // Wakes the thread to answer.
  void Ask();
  [[nodiscard]] bool Answered() const { return heartbeat_.Answered(); }

  [[nodiscard]] const SidebandCounters& counters() const { return counters_; }
  // Device memory that processes share now.
  [[nodiscard]] size_t device_shares() const { return shares_.count(); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Connection {
    SocketPeer peer;
    std::unique_ptr<SidebandConnection> connection;
  };
  struct Handshake {
    Time deadline;
    uint64_t id = 0;
  };
  Sideband(const Options& options, SidebandHost& host, ProcessTable& processes,
           StagingTable& staging);
  [[nodiscard]] absl::Status OpenLoop();

  void Run();
  void Accept(uint32_t events);
  // Has the epoll report the door's socket, where there is one to accept at.
  void WatchDoor();
  void Admit(FileDescriptor socket);
  void Close(uint64_t id);
  void CloseLate();
  void CloseDead();
  [[nodiscard]] int WaitMs() const;

  const Options options_;
  StagingTable& staging_;
  DeviceShares shares_{{}};
  SidebandCounters counters_;
  const SidebandConnection::Context context_;
  std::optional<Doorkeeper> door_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  Heartbeat heartbeat_;
  std::thread thread_;

  // The thread's own.
  uint64_t last_id_ = 0;
  int watched_ = -1;      // the door's socket, as it is in the epoll
  uint64_t door_id_ = 0;  // its id there, another one each time
  absl::flat_hash_map<uint64_t, Connection> connections_;
  ConnectionShares places_;
  std::deque<Handshake> handshakes_;  // in order of their deadlines; some are over already

  Mutex mu_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<ProcessId> dead_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
