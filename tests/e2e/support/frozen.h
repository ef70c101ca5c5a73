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
    const std::string tasks = "/proc/" + std::to_string(process) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      const pid_t thread = std::stoi(task.path().filename());
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (thread == process || !which(name)) continue;
      if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) continue;
      ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
      int status = 0;
      EXPECT_EQ(waitpid(thread, &status, __WALL), thread);
      threads_.push_back(thread);
    }
  }
  ~Frozen() {
    for (const pid_t thread : threads_) ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
  [[nodiscard]] size_t size() const { return threads_.size(); }

 private:
  std::vector<pid_t> threads_;
};

}  // namespace larder::e2e
