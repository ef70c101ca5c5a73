// A session's stream as a gRPC call of Engine.Attach, for sessions in stream mode and for daemons
// that hand out no session sockets.
//
// Send never waits for the daemon: while a message is being written, later messages are queued, and
// the next thread that pumps or sends continues with the queue.  So a thread that sends may also
// hand messages to the session.
// Ownership: Owns the call.
// Thread-safety: Send, Pump, Cancel and Wake may be called from any thread; Close is called once.
// Locks: pump_mu before write_mu.  pump_mu is held while SessionInbox::Handlers run.
// Lifecycle: Open (hello sent, `attached` received) -> Send, Pump ... -> Close.
// Limits: A message has at most kMessageBytesMax bytes; the limits of SessionStream apply too.
#pragma once

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session_channel.h"
#include "client/session/session_inbox.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"

namespace larder {

class RpcChannel;  // client/rpc/rpc_channel.h

class GrpcSessionStream final : public SessionStream {
 public:
  // Returns Unavailable if there is no connection by the deadline, DeadlineExceeded if the daemon
  // does not answer the hello within `deadline` after that, or another error, such as the one that
  // the daemon refused with.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SessionStream>> Open(
      const std::shared_ptr<RpcChannel>& channel, wire::Hello hello,
      SessionInbox::Handlers handlers, std::chrono::milliseconds deadline);
  ~GrpcSessionStream() override;
  GrpcSessionStream(const GrpcSessionStream&) = delete;
  GrpcSessionStream& operator=(const GrpcSessionStream&) = delete;

  [[nodiscard]] const wire::Attached& attached() const override;
  [[nodiscard]] absl::Status Send(wire::Up up) override;
  void Cancel() override;
  [[nodiscard]] uint64_t arrivals() const override;
  void Pump(uint64_t seen, TimePoint look_until, TimePoint deadline) override;
  void Wake() override;
  bool Close(std::chrono::milliseconds deadline) override;

 private:
  struct Impl;
  explicit GrpcSessionStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
