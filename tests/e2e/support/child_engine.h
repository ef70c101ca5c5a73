// engine_process, or another program of its arguments, as a child: started, heard, signalled,
// killed.
//
// It leads a process group of its own, so that what it forked dies with it when this object goes.
// Ownership: the child.  Thread-safety: none.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "proto/frames/file_descriptor.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {

class ChildEngine {
 public:
  ChildEngine(const DaemonProcess& daemon, const std::string& mode, const std::string& verb,
              uint32_t seed, const char* program = nullptr);
  ~ChildEngine();
  ChildEngine(const ChildEngine&) = delete;
  ChildEngine& operator=(const ChildEngine&) = delete;

  // The next line that it prints; nothing when it ended or `limit` passed.
  [[nodiscard]] std::optional<std::string> Hear(
      std::chrono::milliseconds limit = std::chrono::seconds(60));
  void Signal(int signal) const;
  // Has it fork, and waits until it did; false when it does not.
  [[nodiscard]] bool Fork() const;
  // SIGKILL, and the moment from which the kernel calls it dead.
  [[nodiscard]] std::chrono::steady_clock::time_point KillAndProve();
  // The exit code; 128 + the signal that ended it.
  int Wait();
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  std::optional<int> exit_;
  FileDescriptor pidfd_;
  FileDescriptor lines_;
  std::string heard_;
};

}  // namespace larder::e2e
