// The session's bidirectional stream, without a thread of its own: messages go up from any thread,
// and come down on whichever thread pumps.
//
// Knows no ids and no meaning: what comes down goes to a handler.
// Send never waits for the daemon: while a message is being written, those after it queue, and the
// next thread that pumps or sends goes on with them.  So a thread that sends may hand messages down
// too.
// Ownership: owns the call.  Thread-safety: Send, Pump, Cancel from any thread; Close once.
// Lifecycle: Open (hello sent, `attached` received) -> Send, Pump ... -> Close (half-closes, reads
// on until the daemon's end).  REQUIRES: nobody pumps during Close; handlers do not call Send.
// Limits: messages of kMessageBytesMax; kQueuedBytesMax of them wait to be written.  A daemon that
// takes nothing for kWriteDeadline, or lets more queue, has lost the session.
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

class SessionStream final : public SessionChannel, public MessagePump {
 public:
  static constexpr size_t kQueuedBytesMax = 32 << 20;
  static constexpr std::chrono::seconds kWriteDeadline{10};

  // Both on a thread that pumps or sends, one at a time.
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
  [[nodiscard]] MessagePump* pump() override { return this; }
  [[nodiscard]] uint64_t arrivals() const override;
  void Pump(uint64_t seen, TimePoint look_until, TimePoint deadline) override;
  void Wake() override;
  // True: the daemon took all that was sent, and ended the stream in peace.
  bool Close(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  explicit SessionStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
