// Stops some threads of another process while this object lives.  `which` selects them by name; the
// main thread is never stopped.
//
// The object stops a thread only while it waits in a system call.  If it stopped a thread that
// computes, that thread might hold a lock, such as one of the heap's, which the threads that run on
// need: these would then hang as well.
//
// Ownership: the stop; the destructor lets the threads run again.  Thread-safety: the thread that
// creates the object destroys it, because ptrace accepts no other.
#pragma once

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/eventually.h"

namespace larder::e2e {

class Frozen {
 public:
  Frozen(pid_t process, const std::function<bool(const std::string& name)>& which) {
    // A thread that is still running may create another one after the list of threads was read.
    EXPECT_TRUE(Eventually([&] { return FreezeThoseOf(process, which) == 0; }))
        << "threads that never wait in a system call, or /proc/PID/task/TID/syscall cannot be read";
  }
  ~Frozen() {
    for (const pid_t thread : threads_) ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
  [[nodiscard]] size_t size() const { return threads_.size(); }

 private:
  // Stops the selected threads that are not stopped yet, and returns how many there were.
  size_t FreezeThoseOf(pid_t process, const std::function<bool(const std::string& name)>& which) {
    size_t found = 0;
    const std::string tasks = "/proc/" + std::to_string(process) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      const pid_t thread = std::stoi(task.path().filename());
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (thread == process || !which(name) || IsStopped(thread)) continue;
      // PTRACE_SEIZE fails for a thread that has ended.
      if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) continue;
      ++found;
      ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
      int status = 0;
      EXPECT_EQ(waitpid(thread, &status, __WALL), thread);
      if (Waits(task.path())) {
        threads_.push_back(thread);
      } else {
        ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
      }
    }
    return found;
  }
  [[nodiscard]] bool IsStopped(pid_t thread) const {
    return std::find(threads_.begin(), threads_.end(), thread) != threads_.end();
  }
  // Returns true if the stopped thread is in a system call that waits.
  [[nodiscard]] static bool Waits(const std::filesystem::path& task) {
    long number = -1;  // remains unless the thread is in a system call
    std::ifstream(task / "syscall") >> number;
    for (const long waits : {SYS_epoll_pwait, SYS_futex, SYS_ppoll, SYS_clock_nanosleep})
      if (number == waits) return true;
#ifdef SYS_epoll_wait
    return number == SYS_epoll_wait || number == SYS_poll;
#else
    return false;
#endif
  }

  std::vector<pid_t> threads_;
};

}  // namespace larder::e2e
