// Accepts at the daemon's socket files and hands the connections to its gRPC servers.  gRPC's own
// listeners stop for good once the process is out of descriptors, and cannot take over a socket
// that listens already.
//
// Keeps each socket's connections within its shares.  What it refuses it closes: the caller sees
// UNAVAILABLE, and log and metrics say which share was full.  (HTTP/2 could say it by GOAWAY, but
// gRPC's client then connects again at once, without end.)  A socket that breaks, or whose file is
// taken away, is opened again (server/connections/doorkeeper.h).  Where the kernel cannot refuse
// descriptors, a connection that brings some ends (server/connections/passed_rights.h).
//
// gRPC owns a connection from the hand-over on and does not say when it closes it.  So the loop
// remembers number and inode of each and looks again whether they still belong together: an fstat
// of one of our own sockets cannot wait, and 4,000 take a millisecond.  Watching duplicates instead
// would cost a descriptor each and leave gRPC's epoll with sockets that it thinks closed.  It looks
// every kCheckEvery, and after a refusal at most every kCheckAgain, so a place that was given up
// serves the next connection within that time.
//
// Ownership: its thread, the listening sockets; borrows the servers, what knows their peers and
// what counts what comes in.
// Thread-safety: Stop from any thread; counters and Accepting too; the rest from one.
// Lifecycle: made once the servers serve -> Stop before they are shut down -> destroyed.  What no
// loop has accepted by then waits for the next daemon where the listener was handed over.
// Limits: Endpoint::limits.  The daemon's own connections do not count.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/frames/file_descriptor.h"
#include "server/connections/connection_peers.h"
#include "server/connections/connection_shares.h"
#include "server/connections/doorkeeper.h"
#include "server/connections/listening_socket.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/incoming_messages.h"
#include "server/runtime/heartbeat.h"
#include "storage/mutex.h"

namespace larder {

class AcceptLoop {
 public:
  static constexpr std::chrono::milliseconds kCheckEvery{1000};
  static constexpr std::chrono::milliseconds kCheckAgain{10};

  struct Endpoint {
    std::string name;  // in log lines: "data.sock"
    std::unique_ptr<ListeningSocket> socket;
    GrpcServers* servers = nullptr;  // borrowed
    ConnectionShares::Limits limits;
    ConnectionCounters* counters = nullptr;  // borrowed
  };
  // `report` is called on the loop's thread.
  AcceptLoop(std::vector<Endpoint> endpoints, ConnectionPeers& peers, IncomingMessages& incoming,
             const Doorkeeper::Report& report);
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

  // Closes the listening sockets; returns when no connection is accepted any more.
  void Stop() LARDER_EXCLUDES(mu_);

  // Returns false while one of its sockets is broken and could not be opened again.
  [[nodiscard]] bool Accepting() const;

  // Wakes the thread to answer.
  void Ask();
  [[nodiscard]] bool Answered() const { return heartbeat_.Answered(); }

 private:
  using Time = Doorkeeper::Time;
  struct Served {
    Served(Endpoint endpoint, const Doorkeeper::Report& report)
        : door(std::move(endpoint.name), std::move(endpoint.socket), *endpoint.counters, report),
          servers(*endpoint.servers),
          shares(endpoint.limits),
          counters(*endpoint.counters) {}
    Doorkeeper door;
    GrpcServers& servers;
    ConnectionShares shares;
    ConnectionCounters& counters;
  };
  struct Connection {
    ino_t inode = 0;
    size_t endpoint = 0;
    SocketPeer peer;
    bool own = false;  // the daemon's, which has no share
  };

  void Run();
  [[nodiscard]] int WaitMs(Time now) const;
  void AcceptSome(size_t endpoint);
  void Admit(size_t endpoint, FileDescriptor socket);
  [[nodiscard]] ShareRefusal TakePlace(Served& served, const SocketPeer& peer);
  void HandOver(size_t endpoint, FileDescriptor socket, const SocketPeer& peer, bool own);
  void ForgetClosed(Time now);
  // gRPC has closed it.
  void GiveBack(const Connection& connection);

  ConnectionPeers& peers_;
  IncomingMessages& incoming_;
  const FileDescriptor wake_;
  std::vector<const ConnectionCounters*> counters_;  // of all sockets
  std::atomic<bool> stop_{false};
  Heartbeat heartbeat_;

  // The thread's.
  std::vector<Served> served_;
  absl::flat_hash_map<int, Connection> connections_;  // by descriptor
  Time next_check_;
  Time forgot_;  // when the closed ones were forgotten last

  Mutex mu_;
  std::thread thread_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
