// The floor of a round trip: an echo over the same kind of call, server and socket as the daemon's
// own, in the same or in another child process.  Server on gRPC's callback API, client blocking.
//
// Ownership: EchoServer serves until dropped.  Thread-safety: EchoClient from one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder::bench {

class EchoServer {
 public:
  // Unavailable: the socket file cannot be made.
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
  // Waits until the server answers.  Unavailable: it does not within 10 s.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<EchoClient>> Connect(
      const std::string& socket_path);
  ~EchoClient();
  EchoClient(const EchoClient&) = delete;
  EchoClient& operator=(const EchoClient&) = delete;

  // Message sizes on the wire, both ways; prepared by SetSizes so that only the round trip is
  // timed.
  void SetSizes(size_t ping_bytes, size_t pong_bytes);
  [[nodiscard]] absl::Status Call();        // unary
  [[nodiscard]] absl::Status StreamPing();  // a message each way on one open stream

 private:
  struct Parts;
  explicit EchoClient(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// argv of a child process that serves an echo at `socket_path` and nothing else: this program
// again.
[[nodiscard]] std::string EchoServerFlag(const std::string& socket_path);
// In such a child: serves for ever.  nullopt: this is not one.
[[nodiscard]] std::optional<int> MaybeServeEcho(int argc, char** argv);

}  // namespace larder::bench
