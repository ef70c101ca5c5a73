// Accepts at one socket file of the daemon, whatever happens to it: a socket that breaks, or whose
// file is taken away, is opened again, and when no descriptor is left connections are turned away,
// so that the loop that polls does not spin on one that cannot be accepted.
//
// Has no thread and never waits.  Does not judge connections; their shares are the caller's.
// Ownership: the listening socket, one spare descriptor; borrows the counters.
// Thread-safety: one thread, its loop's.
// Lifecycle: made -> the loop polls fd() until due(), then calls Accept or OnHangup, and Look each
// time -> destroyed.
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
  static constexpr std::chrono::milliseconds kCheckEvery{1000};  // at the file
  static constexpr std::chrono::milliseconds kExhausted{100};    // no memory for a connection
  static constexpr std::chrono::milliseconds kRetryMin{100};     // of opening a broken socket again
  static constexpr std::chrono::milliseconds kRetryMax{2000};
  static constexpr std::chrono::milliseconds kTellAgain{20};  // of connections that are refused
  static constexpr int kBatch = 32;  // connections that a loop accepts before it looks elsewhere

  // `report` hears what an operator should know, often the same; may be empty.
  using Report = std::function<void(const std::string&)>;
  // `name`: in log lines, "data.sock".
  Doorkeeper(std::string name, std::unique_ptr<ListeningSocket> socket,
             ConnectionCounters& counters, Report report);

  // To be polled for input.  -1: nothing can be accepted before due().  Another one after each call
  // that is not const.
  [[nodiscard]] int fd(Time now) const;
  [[nodiscard]] Time due(Time now) const;

  // Empty: no connection waits, or none can be had now.
  [[nodiscard]] FileDescriptor Accept(Time now);
  // The poll reported an error of this fd(), or that it was shut down.
  void OnHangup(int fd, Time now);
  // Is the file still there, or can the socket be opened again?  When due.
  void Check(Time now);

  [[nodiscard]] const std::string& name() const { return name_; }
  // Nobody connects to it any more.
  [[nodiscard]] bool broken() const { return broken_; }
  // As ListeningSocket's.
  [[nodiscard]] bool refuses_rights() const { return socket_->refuses_rights(); }
  void Tell(const std::string& what) const;  // to `report`, with the name before it
  // Tells that a connection of this uid was refused, and why; at most every kTellAgain, since a
  // peer that connects again as soon as it is refused may do so tens of thousands of times per
  // second, and composing the text costs more than the refusal.
  void TellRefused(uid_t uid, absl::FunctionRef<std::string()> why, Time now);

 private:
  void OnError(int error, Time now);
  // Accepts one connection with the spare descriptor, so that the listener does not stay readable.
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
  Time not_before_;  // without memory: nothing is accepted until then
  Time next_check_;
  Time told_;  // when a refusal was last told of
};

}  // namespace larder
