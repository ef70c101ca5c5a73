#include "client/cli/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <initializer_list>

#include "storage/check.h"

namespace larder::cli {
namespace {

// True when `fd` became readable, false when `other` did or the time was up.
enum class Ready { kFirst, kOther, kNeither };
Ready Poll(int first, int other, int timeout_ms) {
  pollfd fds[] = {{first, POLLIN, 0}, {other, POLLIN, 0}};
  int n;
  do {
    n = poll(fds, 2, timeout_ms);
  } while (n < 0 && errno == EINTR);
  if (fds[1].revents != 0) return Ready::kOther;
  return n > 0 ? Ready::kFirst : Ready::kNeither;
}

void Wake(int fd) {
  const uint64_t one = 1;
  (void)!write(fd, &one, sizeof one);
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
  LARDER_CHECK(signals_ >= 0 && came_ >= 0 && stop_ >= 0);
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  Wake(stop_);
  thread_.join();
  for (const int fd : {signals_, came_, stop_}) close(fd);
}

void Interrupt::Run() {
  while (Poll(signals_, stop_, -1) == Ready::kFirst) {
    signalfd_siginfo info = {};
    if (read(signals_, &info, sizeof info) != sizeof info) continue;
    const int number = static_cast<int>(info.ssi_signo);
    if (signal_.exchange(number) != 0) _exit(128 + number);
    Wake(came_);
    cancel_.Cancel();
  }
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

bool Interrupt::AwaitInput(int fd) { return Poll(fd, came_, -1) == Ready::kFirst; }

}  // namespace larder::cli
