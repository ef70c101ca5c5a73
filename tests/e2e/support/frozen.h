// Stops some threads of another process while this object lives.  `which` selects them by name; the
// main thread is never stopped.
//
// Ownership: the stop; the destructor lets the threads run again.  Thread-safety: the thread that
// creates the object destroys it, because ptrace accepts no other.
#pragma once

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace larder::e2e {

class Frozen {
 public:
  Frozen(pid_t process, const std::function<bool(const std::string& name)>& which) {
    // A thread that is still running may create another one after the list of threads was read.
    while (FreezeThoseOf(process, which) > 0) {
    }
  }
  ~Frozen() {
    for (const pid_t thread : threads_) ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
  [[nodiscard]] size_t size() const { return threads_.size(); }

 private:
  // Stops the selected threads that are not stopped yet, and returns how many these were.
  size_t FreezeThoseOf(pid_t process, const std::function<bool(const std::string& name)>& which) {
    const size_t before = threads_.size();
    const std::string tasks = "/proc/" + std::to_string(process) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      const pid_t thread = std::stoi(task.path().filename());
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (thread == process || !which(name)) continue;
      // PTRACE_SEIZE fails for a thread that has ended, and for one that is seized already.
      if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) continue;
      ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
      int status = 0;
      EXPECT_EQ(waitpid(thread, &status, __WALL), thread);
      threads_.push_back(thread);
    }
    return threads_.size() - before;
  }

  std::vector<pid_t> threads_;
};

}  // namespace larder::e2e
