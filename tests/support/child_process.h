// A forked child that runs a function, with a line to its parent in both directions, so that the
// two can take turns without sleeping.
//
// REQUIRES: the child is forked before the test starts any thread.  The child dies with its parent,
// and ends by _exit.
#pragma once

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>

#include "proto/frames/file_descriptor.h"

// In a child: ends it with a line on stderr if the condition is false.
#define CHILD_CHECK(condition)                                                           \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: in the child: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                          \
    }                                                                                    \
  } while (false)

namespace larder {

// One end of the line.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void Tell(uint64_t value) const {
    EXPECT_EQ(send(fd_.get(), &value, sizeof value, MSG_NOSIGNAL), ssize_t{sizeof value});
  }
  // Waits.  Returns nullopt if the other end is gone.
  [[nodiscard]] std::optional<uint64_t> Hear() const {
    uint64_t value = 0;
    if (recv(fd_.get(), &value, sizeof value, 0) != ssize_t{sizeof value}) return std::nullopt;
    return value;
  }

 private:
  FileDescriptor fd_;
};

class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void(const Line&)>& body,
                        std::optional<uid_t> uid = std::nullopt) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      const Line line(ends[1]);
      Become(uid);
      body(line);
      _exit(0);
    }
    close(ends[1]);
    line_.emplace(ends[0]);
  }
  ~ChildProcess() {
    if (pid_ > 0) {
      Kill();
      Wait();
    }
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] const Line& line() const { return *line_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void Kill() const { kill(pid_, SIGKILL); }
  // Returns the exit code, or -1 if a signal ended the child.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(std::exchange(pid_, 0), &status, 0) > 0, true);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  static void Become(std::optional<uid_t> uid) {
    if (uid) {
      CHILD_CHECK(setgroups(0, nullptr) == 0);
      CHILD_CHECK(setresgid(*uid, *uid, *uid) == 0 && setresuid(*uid, *uid, *uid) == 0);
      // Otherwise /proc/self/fd would be closed to the child, for a reason that is not under test.
      CHILD_CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
    }
    CHILD_CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
  }
  pid_t pid_ = 0;
  std::optional<Line> line_;
};

}  // namespace larder
