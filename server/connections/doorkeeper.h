// Accepts connections at one socket file of the daemon.  If the socket breaks, or its file is
// removed or replaced, the doorkeeper opens a new socket at the path, and tries again until that
// succeeds.  If no descriptor is left, it accepts connections with a spare descriptor and closes
// them, so that the loop that polls does not spin on a connection that cannot be accepted.
//
// The doorkeeper has no thread and waits for no client.  The caller, not the doorkeeper, applies
// the limits of connections.
// Ownership: it owns the listening socket and one spare descriptor, and borrows the counters.
// Thread-safety: only the thread of its loop may use it.
// Lifecycle: created -> the loop polls fd() until due(), calls Accept or OnHangup, and then always
// Check -> destroyed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "proto/frames/file_descriptor.h"
#include "server/connections/connection_shares.h"
#include "server/connections/listening_socket.h"

namespace larder {

class Doorkeeper {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kCheckEvery{1000};  // between checks of the file
  static constexpr std::chrono::milliseconds kExhausted{100};    // pause if resources ran out
  static constexpr std::chrono::milliseconds kRetryMin{100};     // after a first failed reopen
  static constexpr std::chrono::milliseconds kRetryMax{2000};    // longest pause between reopens
  static constexpr std::chrono::milliseconds kTellAgain{20};     // between reports of refusals
  static constexpr int kBatch = 32;  // connections that a loop accepts before its other work

  // Called with texts for an operator, often with the same text.  An empty Report disables reports.
  using Report = std::function<void(const std::string&)>;
  // `name` is the name in log lines, such as "data.sock".
  Doorkeeper(std::string name, std::unique_ptr<ListeningSocket> socket,
             ConnectionCounters& counters, Report report);

  // Returns the descriptor that the loop must poll for input, or -1 if nothing can be accepted
  // before due().  Every call of a non-const method may change the result.
  [[nodiscard]] int fd(Time now) const;
  [[nodiscard]] Time due(Time now) const;

  // Accepts a connection.  Returns an empty descriptor if no connection waits or could be accepted.
  [[nodiscard]] FileDescriptor Accept(Time now);
  // Called when poll reported an error or a hang-up of `fd`, which fd() had returned.
  void OnHangup(int fd, Time now);
  // Checks whether the file is still in place.  If it is not, or the socket is broken, tries to
  // open a new socket at the path.  Does nothing before the next check is due.
  void Check(Time now);

  [[nodiscard]] const std::string& name() const { return name_; }
  // Returns true while the doorkeeper tries to replace a socket that broke or lost its file.
  [[nodiscard]] bool broken() const { return broken_; }
  // Returns ListeningSocket::refuses_rights() of the present socket.
  [[nodiscard]] bool refuses_rights() const { return socket_->refuses_rights(); }
  void Tell(const std::string& what) const;  // reports the name followed by `what`
  // Reports that a connection of this uid was refused, and why, unless the last refusal (of any
  // uid) was reported less than kTellAgain ago.  A peer may be refused tens of thousands of times
  // per second.
  void TellRefused(uid_t uid, absl::FunctionRef<std::string()> why, Time now);

 private:
  void OnError(int error, Time now);
  // Accepts one connection with the spare descriptor and closes it.
  void RefuseOne(Time now);
  void Break(const std::string& why, Time now);
  void Mend(Time now);

  std::string name_;
  std::unique_ptr<ListeningSocket> socket_;
  ConnectionCounters& counters_;
  Report report_;
  FileDescriptor spare_;
  bool broken_ = false;
  std::chrono::milliseconds retry_ = kRetryMin;
  Time not_before_;  // nothing is accepted until then, because memory or descriptors ran out
  Time next_check_;
  Time told_;  // when a refusal was last reported
};

}  // namespace larder
