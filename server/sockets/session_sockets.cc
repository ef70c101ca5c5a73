#include "server/sockets/session_sockets.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {

absl::StatusOr<std::unique_ptr<SessionSockets>> SessionSockets::Start(
    const SessionSocket::Context& context, size_t threads) {
  auto sockets = absl::WrapUnique(new SessionSockets(context));
  for (size_t i = 0; i < threads; ++i) {
    LARDER_ASSIGN_OR_RETURN(std::unique_ptr<SessionLoop> loop, SessionLoop::Start());
    sockets->loops_.push_back(std::move(loop));
  }
  return sockets;
}

void SessionSockets::Ask() {
  for (const std::unique_ptr<SessionLoop>& loop : loops_) loop->Ask();
}

bool SessionSockets::Answered() const {
  return std::ranges::all_of(loops_, [](const auto& loop) { return loop->Answered(); });
}

absl::StatusOr<FileDescriptor> SessionSockets::Open(const AttachedProcess& process) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot create the socket of a session");
  }
  FileDescriptor clients(ends[1]);
  SessionLoop& loop = *loops_[next_.fetch_add(1) % loops_.size()];
  auto socket =
      std::make_unique<SessionSocket>(context_, FileDescriptor(ends[0]), loop.NewId(), loop);
  absl::StatusOr<std::shared_ptr<AttachedSession>> session =
      context_.sessions.Add(context_.deps, process, HolderOf(process),
                            absl::StrCat("uid ", process.uid, " pid ", process.pid), *socket);
  if (session.ok()) {
    socket->Begin(*std::move(session));
    loop.Add(std::move(socket));
  } else {
    socket->Refuse(session.status());
  }
  return clients;
}

}  // namespace larder
