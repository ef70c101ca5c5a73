#include "server/runtime/signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

sigset_t OurSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

int PollTimeoutMs(std::optional<Duration> pulse) {
  if (!pulse) return -1;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(*pulse).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 1, 3'600'000));
}

}  // namespace

void BlockSignals() {
  const sigset_t set = OurSignals();
  LARDER_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  LARDER_CHECK(std::signal(SIGPIPE, SIG_IGN) != SIG_ERR);
}

absl::StatusOr<std::unique_ptr<SignalThread>> SignalThread::Start(Handlers handlers) {
  const sigset_t set = OurSignals();
  FileDescriptor signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return absl::ErrnoToStatus(errno, "cannot listen for signals");
  LARDER_ASSIGN_OR_RETURN(WakeUp stop, WakeUp::Open("cannot listen for signals"));
  return std::unique_ptr<SignalThread>(
      new SignalThread(std::move(handlers), std::move(signals), std::move(stop)));
}

SignalThread::SignalThread(Handlers handlers, FileDescriptor signals, WakeUp stop)
    : handlers_(std::move(handlers)), signals_(std::move(signals)), stop_(std::move(stop)) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "signals");
    Run();
  });
}

SignalThread::~SignalThread() {
  stop_.Wake();
  thread_.join();
}

void SignalThread::Run() {
  pollfd fds[] = {{signals_.get(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
  const int timeout_ms = PollTimeoutMs(handlers_.pulse);
  while (true) {
    const int ready = poll(fds, 2, timeout_ms);
    if (ready < 0) continue;  // EINTR
    if (handlers_.pulse) handlers_.on_pulse();
    if (fds[1].revents != 0) return;
    if (fds[0].revents != 0) OnSignal();
  }
}

void SignalThread::OnSignal() {
  signalfd_siginfo info{};
  if (read(signals_.get(), &info, sizeof info) != sizeof info) return;
  if (info.ssi_signo == SIGHUP) {
    handlers_.on_hangup();
    return;
  }
  // Ends the process without destructors: an operator who sends a second signal does not want to
  // wait for anything.
  if (std::exchange(ending_, true)) _exit(handlers_.second_signal_exit_code);
  handlers_.on_end(static_cast<int>(info.ssi_signo));
}

}  // namespace larder
