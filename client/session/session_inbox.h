// What comes down a session's stream, whatever it travels on: the messages, counted, and the end.
//
// Knows no ids and no meaning: but for `attached`, which it keeps, all goes to a handler.
// Thread-safety: HandOver and End from one thread at a time (whoever pumps); all else from any.
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
  // Both on a thread that pumps or sends, one at a time; they do not call Send.
  struct Handlers {
    std::function<void(wire::Down)> on_down;
    std::function<void(const absl::Status&)>
        on_broken;  // once, when the stream ended, however it did
  };
  explicit SessionInbox(Handlers handlers) : handlers_(std::move(handlers)) {}

  void HandOver(wire::Down down);
  // `why` is OK when the daemon ended the stream in peace.
  void End(const absl::Status& why);

  // Messages that the session has: who looks at the count before has yet to look at them.
  [[nodiscard]] uint64_t arrivals() const { return arrivals_.load(); }
  [[nodiscard]] bool ended() const { return ended_.load(); }
  // REQUIRES: ended().
  [[nodiscard]] bool ended_in_peace() const { return why_.ok(); }
  // REQUIRES: WaitAttached said OK.
  [[nodiscard]] const wire::Attached& attached() const { return attached_; }

  // Pumps until `attached` came.  What the daemon refuses with; DeadlineExceeded.
  [[nodiscard]] absl::Status WaitAttached(MessagePump& pump, TimePoint until);
  // Pumps until the end; false: it did not come in time.
  [[nodiscard]] bool WaitEnd(MessagePump& pump, TimePoint until);

 private:
  const Handlers handlers_;
  wire::Attached attached_;  // const once has_attached_
  absl::Status why_;         // const once ended_
  std::atomic<bool> has_attached_{false};
  std::atomic<bool> ended_{false};
  std::atomic<uint64_t> arrivals_{0};
};

// Why a stream ends on which something came that does not decode.
[[nodiscard]] absl::Status Nonsense(const absl::Status& why);

}  // namespace larder
