// The gRPC servers of one socket file: the same services, over connections that an AcceptLoop
// accepts.
//
// gRPC has a memory quota for each server, and when the quota is used up it ends calls of that
// server, whichever client's they are.  So a socket file whose users do not trust one another has
// several servers, and all connections that a user has at a time are at the same server.
//
// Ownership: the services and counters outlive it; it outlives the AcceptLoop.
// Thread-safety: Enter and Leave from one thread at a time; the other methods from any thread.
// Lifecycle: Start -> connections by AddInsecureChannelFromFd -> Shutdown -> Wait -> destroyed.
// Limits: kStreamsPerConnectionMax calls at once on a connection.  A connection without a call for
// kIdleLimit_ms is closed, so that a silent peer does not keep a place.  gRPC's clients connect
// again with their next call.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/container/flat_hash_map.h"
#include "server/grpc/method_table.h"
#include "server/grpc/wrong_socket.h"
#include "server/metrics/counters.h"
#include "storage/types.h"

namespace larder {

inline constexpr int kStreamsPerConnectionMax = 128;
inline constexpr int kIdleLimit_ms = 60'000;
inline constexpr size_t kUserServers = 8;  // of data.sock

class GrpcServers {
 public:
  struct Options {
    std::string socket_dir;   // named in the answer to a call at the wrong socket
    ByteCount memory_limit;   // of messages under way
    int rpc_threads_max = 0;  // if 0, gRPC decides
  };
  // Returns null if a server cannot start.
  [[nodiscard]] static std::unique_ptr<GrpcServers> Start(
      Socket socket, size_t servers, const Options& options, Counters& counters,
      const std::vector<grpc::Service*>& services);

  // Counts a connection of this user, until Leave, and returns the server that must get the
  // connection: the server of the user's other connections, or, if there are none, the one with the
  // fewest users.
  [[nodiscard]] grpc::Server& Enter(uid_t uid);
  // Called when a connection of this user is closed.  REQUIRES: one call for each Enter of this
  // user.
  void Leave(uid_t uid);

  // Returns one of the servers, for calls within the process.
  [[nodiscard]] grpc::Server& any() const { return *lanes_.front().server; }
  // Sets the health that the servers report.
  void SetServing(bool serves) const;
  // Shuts the servers down, one after the other: each refuses new calls, and cancels at `deadline`
  // the calls that are still under way.  Returns when that is done.
  void Shutdown(std::chrono::system_clock::time_point deadline) const;
  void Wait() const;

 private:
  struct Lane {
    std::unique_ptr<WrongSocket> wrong;
    std::unique_ptr<grpc::Server> server;
    size_t users = 0;
  };
  struct User {
    size_t lane = 0;
    size_t connections = 0;
  };
  std::vector<Lane> lanes_;
  absl::flat_hash_map<uid_t, User> users_;  // those that have connections
};

}  // namespace larder
