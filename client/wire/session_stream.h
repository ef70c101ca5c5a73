// The session's bidirectional stream: writes from any thread, one reader thread of its own.
//
// Knows no ids and no meaning: what comes down goes to a handler.
// Ownership: owns call and thread.  Thread-safety: Send from any thread, serialized; Close once.
// Lifecycle: Open (hello sent, `attached` received) -> Send ... -> Close (half-closes, waits for
// the daemon's end, joins).  No handler runs after Close returned.  REQUIRES: Close is not called
// from a handler.
// Limits: messages of kMessageBytesMax.  A daemon that takes nothing for 10 s while one is written
// has lost the session.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session_channel.h"
#include "client/wire/messages.h"
#include "storage/clock.h"

namespace larder {

class RpcChannel;  // client/wire/rpc_channel.h

class SessionStream final : public SessionChannel {
 public:
  // Both on the reader thread.
  struct Handlers {
    std::function<void(wire::Down)> on_down;
    std::function<void(const absl::Status&)>
        on_broken;  // once, when the stream ended, however it did
  };
  // What the daemon refuses with; DeadlineExceeded when it did not answer the hello in time.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SessionStream>> Open(
      const std::shared_ptr<RpcChannel>& channel, wire::Hello hello, Handlers handlers,
      std::chrono::milliseconds deadline);
  ~SessionStream() override;
  SessionStream(const SessionStream&) = delete;
  SessionStream& operator=(const SessionStream&) = delete;

  // The daemon's answer to the hello.
  [[nodiscard]] const wire::Attached& attached() const;
  [[nodiscard]] absl::Status Send(wire::Up up) override;
  void Cancel() override;
  // Cancels at that time unless the stream has ended by then, also what another thread writes.
  void CancelAt(TimePoint due);
  void Close(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  explicit SessionStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
