// Hands out session sockets to processes of this host, each with a session of its own.  One or more
// SessionLoops serve them.
//
// Ownership: owns the loops.  Borrows what SessionSocket::Context refers to, which outlives it.
// Thread-safety: Open from any thread; Ask and Answered from one thread.
// Lifecycle: Start -> Open ... -> destroyed, which ends the sessions on its sockets.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "server/processes/process_table.h"
#include "server/sockets/session_loop.h"
#include "server/sockets/session_socket.h"

namespace larder {

class SessionSockets {
 public:
  // REQUIRES: threads > 0.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SessionSockets>> Start(
      const SessionSocket::Context& context, size_t threads);
  SessionSockets(const SessionSockets&) = delete;
  SessionSockets& operator=(const SessionSockets&) = delete;

  // Creates a session and its socket, and returns the client's end of the socket.  If no session
  // can be created, the client reads the reason from the socket, in the form of a session's end.
  // Returns an error if no socket can be created.
  [[nodiscard]] absl::StatusOr<FileDescriptor> Open(const AttachedProcess& process);

  // Ask asks all loops to show that they make progress, and wakes them.  Answered returns true if
  // all have done so since the last Ask, or if Ask was never called.
  void Ask();
  [[nodiscard]] bool Answered() const;

 private:
  explicit SessionSockets(const SessionSocket::Context& context) : context_(context) {}

  const SessionSocket::Context context_;
  std::vector<std::unique_ptr<SessionLoop>> loops_;
  std::atomic<size_t> next_{0};
};

}  // namespace larder
