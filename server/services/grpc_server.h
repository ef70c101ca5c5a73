// One gRPC server of the daemon: the services of one socket file, over connections that an
// AcceptLoop accepts.
//
// Ownership: values; the services and counters outlive the server.
// Thread-safety: as gRPC's.
// Lifecycle: Serve -> connections by AddInsecureChannelFromFd -> server->Shutdown, Wait -> destroyed.
// Limits: kStreamsPerConnectionMax calls at once on a connection; one that has no call for
// kIdleLimit_ms is closed, so that a silent peer does not keep its place.  gRPC's clients connect
// again with their next call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "server/counters.h"
#include "server/services/method_table.h"
#include "server/services/wrong_socket.h"
#include "storage/types.h"

namespace larder {

inline constexpr int kStreamsPerConnectionMax = 128;
inline constexpr int kIdleLimit_ms = 60'000;

struct Served {
  std::unique_ptr<WrongSocket> wrong;
  std::unique_ptr<grpc::Server> server;  // null: it cannot start
};

struct ServeOptions {
  std::string socket_dir;   // for what a caller at the wrong socket is told
  ByteCount memory_limit;   // of messages under way
  int rpc_threads_max = 0;  // 0: gRPC decides
};
[[nodiscard]] Served Serve(Socket socket, const ServeOptions& options, Counters& counters,
                           const std::vector<grpc::Service*>& services);

}  // namespace larder
