// The sideband: the socket file at which processes of this host attach and receive descriptors.
//
// The sideband listens, accepts within limits, and runs all SidebandConnections on one thread.  It
// does not create directories, and it does not keep two daemons apart (LockFile does).  The mode of
// the file decides which users may connect; unless the listener was handed over, the mode is set
// before the first connection is possible.  If the socket breaks or its file is removed, the
// sideband opens a new one (server/connections/doorkeeper.h).  The thread is urgent
// (storage/thread_priority.h), because clients that attach wait for it during a flood.
//
// Ownership: it owns the listening socket (server/connections/listening_socket.h), the connections
// and the thread.  It borrows host, processes and staging, which outlive it.
// Thread-safety: one thread calls Create and Start and destroys it; one thread calls Ask and
// Answered; any thread may call the other methods.
// Locks: the queue of dead processes (dead_) and the DeviceShares have one each, a leaf.
// Lifecycle: Create (listens; connections wait) -> Start -> destroyed (closes all connections).
// The daemon's death callback calls OnProcessDeath, so ProcessTable::Stop must precede the
// destruction.
// Limits: see Options.  It needs Linux 5.3, SOCK_SEQPACKET, and a path shorter than 108 bytes.
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
#include "server/runtime/wake_queue.h"
#include "storage/types.h"

namespace larder {

class Sideband {
 public:
  struct Options {
    std::string path;
    mode_t mode = 0660;
    // A descriptor that already listens at the path, where the service manager (systemd) created
    // the file and chose its mode; Create duplicates the descriptor.  -1: Create makes the file.
    int listener = -1;
    std::vector<uid_t> trusted_uids = {geteuid()};  // uids that may map slabs writable
    ConnectionShares::Limits connections{.all = 1024, .per_uid = 256, .per_process = 64};
    std::chrono::milliseconds handshake_deadline{5'000};
    Doorkeeper::Report report = {};  // called on the sideband's thread
    [[nodiscard]] absl::Status Validate() const;
  };

  // Returns InvalidArgument if an option is not valid, or another error if the socket cannot be
  // opened.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Sideband>> Create(const Options& options,
                                                                        SidebandHost& host,
                                                                        ProcessTable& processes,
                                                                        StagingTable& staging);
  ~Sideband();
  Sideband(const Sideband&) = delete;
  Sideband& operator=(const Sideband&) = delete;

  void Start();

  // Drops the staging segments of the process, and the device memory that it shares, before this
  // call returns.  Soon after, the sideband's thread closes the connections of the process (a
  // forked child may have kept them open).
  void OnProcessDeath(ProcessId process);

  // Returns false while the sideband's socket is broken and could not be opened again.
  [[nodiscard]] bool Accepting() const { return counters_.door.broken == 0; }

  // Asks the thread for a sign of progress, and wakes it.  Answered() returns whether the sign
  // came.
  void Ask();
  [[nodiscard]] bool Answered() const { return heartbeat_.Answered(); }

  [[nodiscard]] const SidebandCounters& counters() const { return counters_; }
  // Returns how many pieces of device memory the processes share now.
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
  Sideband(const Options& options, WakeUp wake, SidebandHost& host, ProcessTable& processes,
           StagingTable& staging);
  [[nodiscard]] absl::Status OpenLoop();

  void Run();
  void Accept(uint32_t events);
  // Makes epoll report door_'s current socket, if connections can be accepted there now.
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
  WakeQueue<ProcessId> dead_;  // its Stop ends the loop
  Heartbeat heartbeat_;
  std::thread thread_;

  // last_id_ to handshakes_ are used by the thread only, and before Start by Create.
  uint64_t last_id_ = 0;
  int watched_ = -1;      // the listening socket that epoll reports, or -1
  uint64_t door_id_ = 0;  // the id of watched_ in epoll; each socket gets a new one
  absl::flat_hash_map<uint64_t, Connection> connections_;
  ConnectionShares places_;
  std::deque<Handshake> handshakes_;  // by deadline; some of them may be complete already
};

}  // namespace larder
