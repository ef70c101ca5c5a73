// Receives what comes down a session's stream, over any transport: it counts the messages and
// records the end.
//
// It does not interpret messages: it keeps `attached` and passes everything else to a handler.
// Thread-safety: HandOver and End are called by one thread at a time; all other methods from any
// thread.
// Lifecycle: HandOver ... -> End (once).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "client/session/session_channel.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"

namespace larder {

class SessionInbox {
 public:
  // The stream calls both functions on a thread that pumps or sends, one call at a time.  They must
  // not call SessionChannel::Send.
  struct Handlers {
    std::function<void(wire::Down)> on_down;
    std::function<void(const absl::Status&)>
        on_broken;  // once, when the stream has ended for any reason
  };
  explicit SessionInbox(Handlers handlers) : handlers_(std::move(handlers)) {}

  void HandOver(wire::Down down);
  // `why` is OK if the daemon ended the stream without an error.
  void End(const absl::Status& why);

  // Number of messages that were handed to the session.  It grows after the handler ran, so a
  // thread that reads it before it checks a condition misses no message.
  [[nodiscard]] uint64_t arrivals() const { return arrivals_.load(); }
  [[nodiscard]] bool ended() const { return ended_.load(); }
  // REQUIRES: ended().
  [[nodiscard]] bool ended_in_peace() const { return why_.ok(); }
  // REQUIRES: WaitAttached returned OK.
  [[nodiscard]] const wire::Attached& attached() const { return attached_; }

  // Pumps until `attached` has arrived.  Returns DeadlineExceeded if it did not arrive by `until`.
  // If the stream ended before, returns the error that it ended with, or Unavailable if it ended
  // without one.
  [[nodiscard]] absl::Status WaitAttached(MessagePump& pump, TimePoint until);
  // Pumps until the stream has ended.  Returns false if that did not happen in time.
  [[nodiscard]] bool WaitEnd(MessagePump& pump, TimePoint until);

 private:
  const Handlers handlers_;
  wire::Attached attached_;  // const once has_attached_
  absl::Status why_;         // const once ended_
  std::atomic<bool> has_attached_{false};
  std::atomic<bool> ended_{false};
  std::atomic<uint64_t> arrivals_{0};
};

// Returns the error of a stream that ends because a message could not be decoded: Unavailable, with
// the message of `why`.
[[nodiscard]] absl::Status Nonsense(const absl::Status& why);

}  // namespace larder
