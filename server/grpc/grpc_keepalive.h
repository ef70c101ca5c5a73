// Calls the daemon's own gRPC as a client would, to prove that it accepts and answers, or only to
// keep it awake.
//
// One call at a time, of grpc.health.v1; whatever the server says counts, but not that it says
// nothing.  Over the socket file a call after HangUp makes a connection, and so proves the listener
// too; in the process a call costs a fifth of that, and wakes the same threads.
// Ownership: the connection and the call, which ends with this.
// Thread-safety: all calls at once, from any thread.  Lifecycle: destroyed before the server it
// calls; one that calls in the process is closed before that server shuts down, as gRPC faults at
// such a call to one that has.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace grpc {
class Server;
}  // namespace grpc

namespace larder {

class GrpcKeepalive {
 public:
  // A call ends after `limit`, whatever becomes of it.
  GrpcKeepalive(const std::string& socket_path, std::chrono::milliseconds limit);
  // Calls in the process.
  GrpcKeepalive(grpc::Server& server, std::chrono::milliseconds limit);
  ~GrpcKeepalive();
  GrpcKeepalive(const GrpcKeepalive&) = delete;
  GrpcKeepalive& operator=(const GrpcKeepalive&) = delete;

  // Begins a call, unless one is under way or this is closed.
  void Ask();
  // Ends the connection over the socket file, unless a call is under way.  Not on a thread of
  // gRPC's, which must not be the last to let go of a channel: it would wait for itself.
  void HangUp();
  // When it returns no call is under way, and none will be.
  void Close();
  // No call is under way, and the last one was answered, or there has been none.
  [[nodiscard]] bool Answered() const;

 private:
  struct State;

  const std::string socket_path_;  // empty: calls in the process
  const std::chrono::milliseconds limit_;
  const std::unique_ptr<State> state_;
};

}  // namespace larder
