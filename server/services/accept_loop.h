// Accepts on listening sockets that gRPC did not open, and hands the connections to its servers:
// gRPC's own listeners cannot take over a socket that listens already.
//
// Ownership: its thread; borrows the listening sockets and the acceptors.
// Thread-safety: one thread makes and destroys it.
// Lifecycle: made once the servers serve -> destroyed before they are shut down; connections that
// nobody has accepted by then wait for the next daemon.
#pragma once

#include <thread>
#include <vector>

#include <grpcpp/server_builder.h>

#include "client/file_descriptor.h"

namespace larder {

class AcceptLoop {
 public:
  struct Source {
    int listener = -1;
    grpc::experimental::ExternalConnectionAcceptor* acceptor = nullptr;
  };
  explicit AcceptLoop(std::vector<Source> sources);
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

 private:
  void Run();

  const std::vector<Source> sources_;
  const FileDescriptor stop_;
  std::thread thread_;
};

}  // namespace larder
