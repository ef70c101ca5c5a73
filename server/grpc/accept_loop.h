// Accepts connections at the socket files that gRPC serves, and hands them to gRPC's servers.
// gRPC's own listeners cannot be used: they stop forever when the process runs out of descriptors,
// and cannot take over a socket that already listens.
//
// The loop keeps each socket's connections within their limits.  It closes a connection that it
// refuses; the metrics say which limit was reached.  (HTTP/2 could report this by GOAWAY, but then
// gRPC's client connects again at once, forever.)  It also closes a connection that the peer has
// closed already: gRPC would take much longer to find that out, and other new clients would wait.
// If a socket breaks, or its file is removed, the loop opens a new one
// (server/connections/doorkeeper.h).  If the kernel cannot refuse file descriptors that peers send,
// a connection on which some come is usually ended (server/connections/passed_rights.h).
//
// gRPC owns a connection from the hand-over on and does not report when it closes it.  So the loop
// remembers the descriptor number and inode of each connection and checks whether the number still
// has that inode: an fstat of a socket of this process cannot block, and 4,000 take a millisecond.
// Watching a duplicate of each descriptor instead would cost a descriptor for each connection and
// leave gRPC's epoll with sockets that gRPC considers closed.  The loop checks about every
// kCheckEvery, and also when a limit refuses a connection, unless the last check was less than
// kCheckAgain ago.
//
// Ownership: the loop owns its thread and the listening sockets; it borrows the servers,
// ConnectionPeers, IncomingMessages and the counters.
// Thread-safety: any thread may call Stop and Accepting and read the counters; one thread calls the
// other methods.
// Locks: mu_ protects thread_ only; Stop holds it while it joins the thread, which never acquires
// it.
// Lifecycle: constructed when the servers serve -> Stop before they are shut down -> destroyed.
// Connections that were not accepted by then may wait for the next daemon, if the service manager
// handed over the listener.
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
#include "proto/frames/wake_up.h"
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

  // Closes the listening sockets.  When it returns, the loop accepts no more connections.
  void Stop() LARDER_EXCLUDES(mu_);

  // Returns false while a socket of the loop is broken and could not be opened again.
  [[nodiscard]] bool Accepting() const;

  // Asks the thread for a sign of progress, and wakes it.  Answered() returns whether the sign
  // came.
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
    bool own = false;  // the daemon's own connection, which needs no share
  };

  void Run();
  [[nodiscard]] int WaitMs(Time now) const;
  void AcceptSome(size_t endpoint);
  void Admit(size_t endpoint, FileDescriptor socket);
  [[nodiscard]] ShareRefusal TakePlace(Served& served, const SocketPeer& peer);
  void HandOver(size_t endpoint, FileDescriptor socket, const SocketPeer& peer, bool own);
  void ForgetClosed(Time now);
  // Releases the connection's share and its place at a server.  Called when gRPC has closed the
  // connection.
  void GiveBack(const Connection& connection);

  ConnectionPeers& peers_;
  IncomingMessages& incoming_;
  const WakeUp wake_;
  std::vector<const ConnectionCounters*> counters_;  // of all sockets
  std::atomic<bool> stop_{false};
  Heartbeat heartbeat_;

  // While the thread runs, only the thread uses the members from served_ to forgot_.
  std::vector<Served> served_;
  absl::flat_hash_map<int, Connection> connections_;  // by descriptor
  Time next_check_;
  Time forgot_;  // when ForgetClosed ran last

  Mutex mu_;
  std::thread thread_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
