#include "client/session/session_inbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/clock.h"

namespace larder {

void SessionInbox::HandOver(wire::Down down) {
  // Only the first `attached` counts; a later one would change what the session is.
  if (down.attached && !has_attached_.load()) {
    attached_ = *std::move(down.attached);
    has_attached_ = true;
  }
  down.attached.reset();
  handlers_.on_down(std::move(down));
  ++arrivals_;
}

void SessionInbox::End(const absl::Status& why) {
  why_ = why;
  handlers_.on_broken(why.ok() ? absl::UnavailableError("the daemon ended the session") : why);
  ended_ = true;
}

absl::Status SessionInbox::WaitAttached(MessagePump& pump, TimePoint until) {
  for (;;) {
    const uint64_t seen = arrivals();
    if (has_attached_.load()) return absl::OkStatus();
    if (ended()) return why_.ok() ? absl::UnavailableError("the daemon ended the session") : why_;
    if (SteadyNow() >= until) {
      return absl::DeadlineExceededError("the daemon did not answer the session's hello in time");
    }
    pump.Pump(seen, TimePoint(), until);
  }
}

bool SessionInbox::WaitEnd(MessagePump& pump, TimePoint until) {
  while (!ended()) {
    if (SteadyNow() >= until) return false;
    pump.Pump(arrivals(), TimePoint(), until);
  }
  return true;
}

absl::Status Nonsense(const absl::Status& why) {
  return absl::UnavailableError(
      absl::StrCat("the daemon sent an invalid message: ", why.message()));
}

}  // namespace larder
