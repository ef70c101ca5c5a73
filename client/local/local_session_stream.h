// A session's stream on a session socket, for processes on the daemon's host (docs/format.md,
// "Session socket"): the messages of Engine.Attach without gRPC.
//
// Send never waits for the daemon: it queues what the socket does not take, and the next thread
// that pumps or sends continues with the queue.
// Ownership: Owns the socket.
// Thread-safety: Send, Pump, Cancel and Wake may be called from any thread; Close is called once.
// Locks: pump_mu_ before write_mu_.  pump_mu_ is held while SessionInbox::Handlers run.
// Lifecycle: Open (hello sent, `attached` received) -> Send, Pump ... -> Close.  A stream that is
// destroyed without Close ends without goodbye.
// Limits: A message has at most kMessageBytesMax bytes; the limits of SessionStream apply too.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/fork_guard.h"
#include "client/session/session_channel.h"
#include "client/session/session_inbox.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/session_codec.h"
#include "proto/frames/session_frames.h"
#include "proto/frames/socket_queue.h"
#include "proto/frames/wake_up.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class LocalSessionStream final : public SessionStream {
 public:
  // `socket` comes from the sideband.  Returns DeadlineExceeded if the daemon did not answer the
  // hello in time, or another error, such as the one that the daemon refused with.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SessionStream>> Open(
      FileDescriptor socket, wire::Hello hello, SessionInbox::Handlers handlers,
      std::chrono::milliseconds deadline);
  // The destructor also shuts the socket down, because a forked child may hold it too, but only in
  // the process that opened it.
  ~LocalSessionStream() override;
  LocalSessionStream(const LocalSessionStream&) = delete;
  LocalSessionStream& operator=(const LocalSessionStream&) = delete;

  [[nodiscard]] const wire::Attached& attached() const override { return inbox_.attached(); }
  [[nodiscard]] absl::Status Send(wire::Up up) override LARDER_EXCLUDES(write_mu_);
  void Cancel() override;
  [[nodiscard]] uint64_t arrivals() const override { return inbox_.arrivals(); }
  void Pump(uint64_t seen, TimePoint spin_until, TimePoint deadline) override
      LARDER_EXCLUDES(pump_mu_);
  void Wake() override;
  bool Close(std::chrono::milliseconds deadline) override LARDER_EXCLUDES(write_mu_, pump_mu_);

 private:
  LocalSessionStream(FileDescriptor socket, WakeUp wake, SessionInbox::Handlers handlers);

  // Sends queued bytes as far as the socket takes them.  Once all are sent, half-closes the socket
  // if Close has begun.
  void Flush() LARDER_REQUIRES(write_mu_);
  // Sends queued bytes as Flush does.  Returns the time at which the daemon counts as stuck unless
  // it accepts some before, or nullopt if nothing is queued any more.
  [[nodiscard]] std::optional<TimePoint> FlushQueue() LARDER_EXCLUDES(write_mu_);

  // Handles one received message or, if there is no whole one, receives bytes.  Returns false if
  // nothing has arrived.
  [[nodiscard]] bool Read() LARDER_REQUIRES(pump_mu_);
  [[nodiscard]] bool Receive() LARDER_REQUIRES(pump_mu_);
  void Handle(const SessionFrame& frame) LARDER_REQUIRES(pump_mu_);
  void End(const absl::Status& why) LARDER_REQUIRES(pump_mu_) LARDER_EXCLUDES(write_mu_);
  // Makes a sleeping thread check again.
  void Nudge();
  void Sleep(bool writing, TimePoint until) LARDER_REQUIRES(pump_mu_);

  const ForkGuard fork_guard_;
  const FileDescriptor socket_;
  const WakeUp wake_;
  SessionInbox inbox_;
  std::atomic<bool> woken_{false};  // set by Wake: then only Close pumps
  std::atomic<bool> stuck_{false};  // given up: the daemon accepts no data

  Mutex pump_mu_;  // taken before write_mu_
  SessionFrameReader reader_ LARDER_GUARDED_BY(pump_mu_);
  SessionCodec parser_ LARDER_GUARDED_BY(pump_mu_);
  wire::Down down_ LARDER_GUARDED_BY(pump_mu_);
  bool ending_ LARDER_GUARDED_BY(pump_mu_) = false;

  Mutex write_mu_;
  SessionCodec writer_ LARDER_GUARDED_BY(write_mu_);
  SocketQueue queue_ LARDER_GUARDED_BY(write_mu_);
  TimePoint write_due_ LARDER_GUARDED_BY(write_mu_);
  bool closing_ LARDER_GUARDED_BY(write_mu_) = false;  // half-close once the queue is empty
  bool broken_ LARDER_GUARDED_BY(write_mu_) = false;   // nothing more is written
};

}  // namespace larder
