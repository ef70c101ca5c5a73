// The floor of a round trip on a session socket: bytes sent both ways over a bare UNIX socket.
// Both ends spin for a while before they sleep, as a session's do.  No frames, no messages, no work
// in between.
//
// Ownership: a SocketEchoServer serves until it is dropped, one client at a time.  Thread-safety:
// none.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"

namespace larder::bench {

class SocketEchoServer {
 public:
  // Returns Unavailable if the socket file cannot be made.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SocketEchoServer>> Start(
      const std::string& path);
  ~SocketEchoServer();

 private:
  explicit SocketEchoServer(FileDescriptor listener);
  const FileDescriptor listener_;
  std::thread thread_;
};

class SocketEchoClient {
 public:
  // Returns Unavailable if no server listens.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SocketEchoClient>> Connect(
      const std::string& path, size_t ping_bytes, size_t pong_bytes);
  [[nodiscard]] absl::Status Ping();

 private:
  SocketEchoClient(FileDescriptor socket, size_t ping_bytes, size_t pong_bytes);
  const FileDescriptor socket_;
  std::string ping_;
  std::string pong_;
};

}  // namespace larder::bench
