// Calls the daemon's own gRPC as a client would, to prove that it accepts and answers, or only to
// keep it awake.
//
// One call at a time, of grpc.health.v1, over the socket file; whatever the server says counts, but
// not that it says nothing.
// Ownership: the connection and the call, which ends with this.
// Thread-safety: one thread at a time.  Lifecycle: destroyed before the server it calls.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace larder {

class SelfCall {
 public:
  // A call ends after `limit`, whatever becomes of it.
  SelfCall(const std::string& socket_path, std::chrono::milliseconds limit);
  ~SelfCall();
  SelfCall(const SelfCall&) = delete;
  SelfCall& operator=(const SelfCall&) = delete;

  // Begins a call, unless one is under way.
  void Ask();
  // No call is under way, and the last one was answered.
  [[nodiscard]] bool Answered() const;

 private:
  struct State;
  const std::chrono::milliseconds limit_;
  const std::shared_ptr<State> state_;  // shared with the call under way
};

}  // namespace larder
