#include "server/connections/doorkeeper.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/connections/passed_rights.h"

namespace larder {
namespace {

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

FileDescriptor AcceptAt(int listener) {
  return FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

}  // namespace

Doorkeeper::Doorkeeper(std::string name, std::unique_ptr<ListeningSocket> socket,
                       ConnectionCounters& counters, Report report)
    : name_(std::move(name)),
      socket_(std::move(socket)),
      counters_(counters),
      report_(std::move(report)),
      spare_(OpenSpare()) {}

int Doorkeeper::fd(Time now) const { return broken_ || now < not_before_ ? -1 : socket_->get(); }

Doorkeeper::Time Doorkeeper::due(Time now) const {
  return now < not_before_ ? std::min(not_before_, next_check_) : next_check_;
}

FileDescriptor Doorkeeper::Accept(Time now) {
  FileDescriptor socket = AcceptAt(socket_->get());
  if (socket) {
    ++counters_.accepted;
  } else {
    OnError(errno, now);
  }
  return socket;
}

void Doorkeeper::OnError(int error, Time now) {
  switch (error) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    case EPERM:
    case EPROTO:
      return;  // no connection waits, a signal came, or the error concerns one connection only
    case EMFILE:
    case ENFILE:
      return RefuseOne(now);
    case ENOMEM:
    case ENOBUFS:
      ++counters_.over_descriptors;
      not_before_ = now + kExhausted;
      return Tell(": the kernel has no memory for new connections; they wait until it has");
    default:
      Break(std::strerror(error), now);
  }
}

void Doorkeeper::RefuseOne(Time now) {
  ++counters_.over_descriptors;
  Tell(
      ": connections are refused because no descriptor is left; raise the limit of open files "
      "(LimitNOFILE, ulimit -n)");
  spare_ = FileDescriptor();
  if (FileDescriptor socket = AcceptAt(socket_->get())) {
    CloseSocket(std::move(socket), refuses_rights());
  }
  spare_ = OpenSpare();
  // Without a spare descriptor the listener may stay readable, so the loop must pause or it could
  // spin.
  if (!spare_) not_before_ = now + kExhausted;
}

// Needed because accept does not always report that the listener was shut down: it may return
// EAGAIN as if only no connection waited.
void Doorkeeper::OnHangup(int fd, Time now) {
  if (!broken_ && fd == socket_->get()) Break("it was shut down", now);
}

void Doorkeeper::Check(Time now) {
  if (now < next_check_) return;
  next_check_ = now + kCheckEvery;
  if (broken_) return Mend(now);
  if (!socket_->InPlace()) Break("its file was removed or replaced", now);
}

void Doorkeeper::Break(const std::string& why, Time now) {
  broken_ = true;
  retry_ = kRetryMin;
  counters_.broken = 1;
  Tell(absl::StrCat(" takes no connections (", why, ")"));
  Mend(now);
}

void Doorkeeper::Mend(Time now) {
  const absl::Status status = socket_->Reopen();
  if (status.ok()) {
    broken_ = false;
    counters_.broken = 0;
    ++counters_.reopened;
    return Tell(" takes connections again");
  }
  next_check_ = now + retry_;
  retry_ = std::min(retry_ * 2, kRetryMax);
  Tell(absl::StrCat(" cannot be opened again (larderd keeps trying): ",
                    std::string(status.message()), "; restart larderd and its socket units"));
}

void Doorkeeper::Tell(const std::string& what) const {
  if (report_) report_(absl::StrCat(name_, what));
}

void Doorkeeper::TellRefused(uid_t uid, absl::FunctionRef<std::string()> why, Time now) {
  if (now < told_ + kTellAgain) return;
  told_ = now;
  Tell(absl::StrCat(": a connection of uid ", uid, " was refused: ", why()));
}

}  // namespace larder
