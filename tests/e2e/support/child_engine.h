// Runs engine_process, or another program that takes the same arguments, as a child process.  The
// test reads the child's lines, sends it signals and kills it.
//
// The child leads its own process group, so the destructor also kills the processes that the child
// forked.
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

  // Returns the next line that the child prints, or nullopt if the child has ended or prints
  // nothing for `limit`.
  [[nodiscard]] std::optional<std::string> Hear(
      std::chrono::milliseconds limit = std::chrono::seconds(60));
  void Signal(int signal) const;
  // Makes the child fork and waits until it has.  Returns false if it does not.
  [[nodiscard]] bool Fork() const;
  // Sends SIGKILL and returns the time at which the kernel reported the child dead.
  [[nodiscard]] std::chrono::steady_clock::time_point KillAndProve();
  // Waits for the child's end.  Returns its exit code, or 128 + the signal that ended it.
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
