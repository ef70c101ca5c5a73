// Calls the daemon's own gRPC server as a client would, to prove that the server accepts
// connections and answers, or only to keep the server's threads awake.
//
// This class makes one call of grpc.health.v1 at a time.  Any health that the server reports counts
// as an answer; a call that fails does not.  A call over the socket file makes a new connection, so
// that it also proves that the listener works.
// The object's own thread makes the calls.  If gRPC hangs with its locks held, that thread hangs
// too, but the watchdog, which calls Ask and Answered, does not.
// Ownership: owns its thread, the connection and the call, which end with this object.
// Thread-safety: Ask and Answered from any thread; one thread calls Close and destroys the object.
// Locks: one, a leaf; it is not held while a call is begun or a connection ends.
// Lifecycle: destroyed before the server that it calls.  A keepalive within the process must be
// closed before that server shuts down, because gRPC may crash when a server that has shut down is
// called within the process.
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
  // Calls over the socket file, each time with a deadline of `limit`.
  GrpcKeepalive(const std::string& socket_path, std::chrono::milliseconds limit);
  // Calls within the process, each time with a deadline of `limit`.
  GrpcKeepalive(grpc::Server& server, std::chrono::milliseconds limit);
  ~GrpcKeepalive();
  GrpcKeepalive(const GrpcKeepalive&) = delete;
  GrpcKeepalive& operator=(const GrpcKeepalive&) = delete;

  // Asks the object's thread to make a call, unless one is under way or this object is closed.
  // Returns at once.
  void Ask();
  // Cancels the call that is under way and waits for its end.  No further call begins.
  void Close();
  // Returns true if no call is under way, and the last one was answered or there has been none.
  [[nodiscard]] bool Answered() const;

 private:
  struct State;

  const std::unique_ptr<State> state_;
};

}  // namespace larder
