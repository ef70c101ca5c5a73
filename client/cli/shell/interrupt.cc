#include "client/cli/shell/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "storage/check.h"

namespace larder::cli {
namespace {

void Wake(int fd) {
  const uint64_t one = 1;
  (void)!write(fd, &one, sizeof one);
}

void Drain(int fd) {
  uint64_t count = 0;
  (void)!read(fd, &count, sizeof count);
}

}  // namespace

Interrupt::Interrupt() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC);
  came_ = eventfd(0, EFD_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC);
  look_ = eventfd(0, EFD_CLOEXEC);
  LARDER_CHECK(signals_ >= 0 && came_ >= 0 && stop_ >= 0 && look_ >= 0);
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  Wake(stop_);
  thread_.join();
  for (const int fd : {signals_, came_, stop_, look_}) close(fd);
}

void Interrupt::Run() {
  for (;;) {
    // The last entry asks for no events, so poll reports only errors and hang-ups of read_by_, such
    // as that its last reader has gone.  poll ignores an entry whose fd is -1.
    pollfd fds[] = {
        {stop_, POLLIN, 0}, {look_, POLLIN, 0}, {signals_, POLLIN, 0}, {read_by_.load(), 0, 0}};
    if (poll(fds, std::size(fds), -1) < 0) continue;
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0) Drain(look_);
    if (fds[2].revents != 0) OnSignal();
    if (fds[3].revents != 0) {
      std::signal(SIGPIPE, SIG_DFL);
      raise(SIGPIPE);
    }
  }
}

void Interrupt::OnSignal() {
  signalfd_siginfo info = {};
  if (read(signals_, &info, sizeof info) != sizeof info) return;
  const int number = static_cast<int>(info.ssi_signo);
  if (signal_.exchange(number) != 0) _exit(128 + number);
  Wake(came_);
  cancel_.Cancel();
}

void Interrupt::EndWithReaderOf(int fd) {
  read_by_ = fd;
  Wake(look_);
}

int Interrupt::signal() const { return signal_.load(); }

bool Interrupt::Sleep(std::chrono::milliseconds how_long) {
  const auto ms = std::clamp<int64_t>(how_long.count(), 0, 86'400'000);
  pollfd came = {came_, POLLIN, 0};
  int n;
  do {
    n = poll(&came, 1, static_cast<int>(ms));
  } while (n < 0 && errno == EINTR);
  return n == 0;
}

bool Interrupt::AwaitInput(int fd) {
  pollfd fds[] = {{fd, POLLIN, 0}, {came_, POLLIN, 0}};
  while (poll(fds, std::size(fds), -1) < 0 && errno == EINTR) continue;
  return fds[1].revents == 0;
}

}  // namespace larder::cli
