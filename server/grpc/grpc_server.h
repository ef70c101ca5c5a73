// The gRPC servers of one socket file: the same services, over connections that an AcceptLoop
// accepts.
//
// gRPC has a quota of memory for each server, and ends calls of that server, anybody's, once it is
// used up.  So where users do not trust one another there are several, and
// all connections of a user are one server's: kUserServers users have one each, more share them.
//
// Ownership: the services and counters outlive it; it outlives the AcceptLoop.
// Thread-safety: Enter and Leave from one thread at a time; all else from any.
// Lifecycle: Start -> connections by AddInsecureChannelFromFd -> Shutdown -> Wait -> destroyed.
// Limits: kStreamsPerConnectionMax calls at once on a connection; one that has no call for
// kIdleLimit_ms is closed, so that a silent peer does not keep its place.  gRPC's clients connect
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
    std::string socket_dir;   // for what a caller at the wrong socket is told
    ByteCount memory_limit;   // of messages under way
    int rpc_threads_max = 0;  // 0: gRPC decides
  };
  // Null: they cannot start.
  [[nodiscard]] static std::unique_ptr<GrpcServers> Start(
      Socket socket, size_t servers, const Options& options, Counters& counters,
      const std::vector<grpc::Service*>& services);

  // The server that takes a connection of this user, until Leave: that of his others, else that of
  // the fewest users.
  [[nodiscard]] grpc::Server& Enter(uid_t uid);
  // REQUIRES: an Enter of this user that was not left.
  void Leave(uid_t uid);

  // One of them, for calls in the process.
  [[nodiscard]] grpc::Server& any() const { return *lanes_.front().server; }
  // What health says.
  void SetServing(bool serves) const;
  // Refuses calls, and cancels at `deadline` those that still go on.
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
  absl::flat_hash_map<uid_t, User> users_;  // that have connections
};

}  // namespace larder
