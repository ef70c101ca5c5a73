#include "server/services/accept_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "storage/check.h"

namespace larder {
namespace {

// While no descriptor is left, the listener stays readable: the loop must not spin on it.
constexpr int kExhaustedMs = 100;

}  // namespace

AcceptLoop::AcceptLoop(std::vector<Source> sources)
    : sources_(std::move(sources)), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  LARDER_CHECK(bool{stop_});
  // Another process may take the connection between poll and accept.
  for (const Source& source : sources_) {
    LARDER_CHECK(fcntl(source.listener, F_SETFL, O_NONBLOCK) == 0);
  }
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "accept");
    Run();
  });
}

AcceptLoop::~AcceptLoop() {
  LARDER_CHECK(eventfd_write(stop_.get(), 1) == 0);
  thread_.join();
}

void AcceptLoop::Run() {
  std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}};
  for (const Source& source : sources_) fds.push_back({source.listener, POLLIN, 0});
  for (;;) {
    if (poll(fds.data(), fds.size(), -1) < 0) continue;  // EINTR
    if (fds[0].revents != 0) return;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (fds[i + 1].revents == 0) continue;
      const int fd = accept4(sources_[i].listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.listener_fd = sources_[i].listener;
        connection.fd = fd;
        sources_[i].acceptor->HandleNewConnection(&connection);
      } else if (errno == EMFILE || errno == ENFILE) {
        (void)poll(fds.data(), 1, kExhaustedMs);
      }
    }
  }
}

}  // namespace larder
