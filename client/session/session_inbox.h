// Receives the daemon's messages on a session's stream: counts them, and records the end of the
// stream.
//
// It keeps the first `attached` (the daemon's answer that the session is open) and passes all other
// parts of messages to a handler.
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
  // Both functions are called on a thread that is in MessagePump::Pump or SessionChannel::Send, one
  // call at a time.  They must not call SessionChannel::Send.
  struct Handlers {
    std::function<void(wire::Down)> on_down;
    std::function<void(const absl::Status&)>
        on_broken;  // once, when the stream has ended for any reason
  };
  explicit SessionInbox(Handlers handlers) : handlers_(std::move(handlers)) {}

  void HandOver(wire::Down down);
  // `why` is OK if the daemon ended the stream without an error.
  void End(const absl::Status& why);

  // Number of messages that were handed over.  The number grows after `on_down` has returned, so a
  // thread that reads the number before it checks a condition misses no message.
  [[nodiscard]] uint64_t arrivals() const { return arrivals_.load(); }
  [[nodiscard]] bool ended() const { return ended_.load(); }
  // REQUIRES: ended().
  [[nodiscard]] bool ended_in_peace() const { return why_.ok(); }
  // REQUIRES: WaitAttached returned OK.
  [[nodiscard]] const wire::Attached& attached() const { return attached_; }

  // Pumps until `attached` has arrived.  Returns DeadlineExceeded if it did not arrive by `until`.
  // If the stream ended before, returns the error that the stream ended with, or Unavailable if
  // there was none.
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

// Returns the error of a stream that ends because a message could not be decoded: Unavailable; its
// text contains the text of `why`.
[[nodiscard]] absl::Status Nonsense(const absl::Status& why);

}  // namespace larder
