// The floor of a round trip: an echo over the same kind of call, server and socket as the daemon's,
// in this process or in a child process.  The server uses gRPC's callback API, the client blocks.
//
// Ownership: an EchoServer serves until it is dropped.  Thread-safety: use an EchoClient from one
// thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder::bench {

class EchoServer {
 public:
  // Returns Unavailable if the socket file cannot be made.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<EchoServer>> Start(
      const std::string& socket_path);
  ~EchoServer();
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

 private:
  struct Parts;
  explicit EchoServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

class EchoClient {
 public:
  // Waits until the server answers.  Returns Unavailable if it does not within 10 s.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<EchoClient>> Connect(
      const std::string& socket_path);
  ~EchoClient();
  EchoClient(const EchoClient&) = delete;
  EchoClient& operator=(const EchoClient&) = delete;

  // Message sizes on the wire, in both directions.  SetSizes prepares the messages, so that only
  // the round trip is timed.
  void SetSizes(size_t ping_bytes, size_t pong_bytes);
  [[nodiscard]] absl::Status Call();        // unary
  [[nodiscard]] absl::Status StreamPing();  // one message each way on an open stream

 private:
  struct Parts;
  explicit EchoClient(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// The argument that makes this program, started as a child process, do nothing except serve an echo
// at `socket_path`.
[[nodiscard]] std::string EchoServerFlag(const std::string& socket_path);
// In such a child process: serves forever.  Returns nullopt if this process is not one.
[[nodiscard]] std::optional<int> MaybeServeEcho(int argc, char** argv);

}  // namespace larder::bench
