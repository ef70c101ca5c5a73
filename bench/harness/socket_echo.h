// The floor of a round trip on a session socket: bytes that go and come on a bare UNIX socket, both
// ends looking for a while before they sleep, as a session's do.  No frames, no messages, nothing
// done in between.
//
// Ownership: SocketEchoServer serves until dropped, one client at a time.  Thread-safety: none.
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
  // Unavailable: the socket file cannot be made.
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
  // Unavailable: nobody listens.
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
