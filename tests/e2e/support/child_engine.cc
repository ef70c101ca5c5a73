#include "tests/e2e/support/child_engine.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "storage/check.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

bool Readable(int fd, std::chrono::milliseconds limit) {
  pollfd wanted{fd, POLLIN, 0};
  return poll(&wanted, 1, static_cast<int>(limit.count())) == 1;
}

}  // namespace

ChildEngine::ChildEngine(const DaemonProcess& daemon, const std::string& mode,
                         const std::string& verb, uint32_t seed, const char* program) {
  const std::string path = ProgramAt(program == nullptr ? LARDER_ENGINE_PATH : program);
  const std::string number = std::to_string(seed);
  int ends[2];
  LARDER_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  lines_ = FileDescriptor(ends[0]);
  const FileDescriptor write_end(ends[1]);
  pid_ = fork();
  LARDER_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    setpgid(0, 0);
    dup2(write_end.get(), STDOUT_FILENO);
    execl(path.c_str(), path.c_str(), daemon.folder()->path().c_str(), mode.c_str(), verb.c_str(),
          number.c_str(), nullptr);
    _exit(127);
  }
  setpgid(pid_, pid_);  // parent and child both call it, as either may run first
  pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  LARDER_CHECK(pidfd_);
}

ChildEngine::~ChildEngine() {
  kill(-pid_, SIGKILL);
  static_cast<void>(Wait());
}

std::optional<std::string> ChildEngine::Hear(std::chrono::milliseconds limit) {
  for (;;) {
    if (const size_t end = heard_.find('\n'); end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    char piece[256];
    if (!Readable(lines_.get(), limit)) return std::nullopt;
    const ssize_t n = read(lines_.get(), piece, sizeof piece);
    if (n <= 0) return std::nullopt;
    heard_.append(piece, static_cast<size_t>(n));
  }
}

void ChildEngine::Signal(int signal) const {
  if (!exit_) kill(pid_, signal);
}

bool ChildEngine::Fork() const {
  Signal(SIGUSR2);
  const std::string pid = std::to_string(pid_);
  return Eventually([&] {
    int child = 0;
    return static_cast<bool>(std::ifstream("/proc/" + pid + "/task/" + pid + "/children") >> child);
  });
}

std::chrono::steady_clock::time_point ChildEngine::KillAndProve() {
  Signal(SIGKILL);
  LARDER_CHECK(Readable(pidfd_.get(), std::chrono::seconds(30)));
  return std::chrono::steady_clock::now();
}

int ChildEngine::Wait() {
  int status = 0;
  if (!exit_ && waitpid(pid_, &status, 0) == pid_) {
    exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_.value_or(-1);
}

}  // namespace larder::e2e
