// Ctrl-C and SIGTERM: the first ends the call under way, the second the process.
//
// Ownership: one, by main, which outlives every call and every other thread.
// Thread-safety: all methods from any thread.
// Lifecycle: made before any other thread is, which then inherit that these signals are blocked.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "proto/messages/call_limits.h"

namespace larder::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  [[nodiscard]] CallCancel& cancel() { return cancel_; }
  // The signal that came; 0: none.
  [[nodiscard]] int signal() const;
  // False: a signal came first.
  [[nodiscard]] bool Sleep(std::chrono::milliseconds how_long);
  // From now on this process ends, as by SIGPIPE, when nobody can read `fd` any more: a verb that
  // waits would else notice only when it writes again.
  void EndWithReaderOf(int fd);
  // Waits for something to read; false: a signal came first.
  [[nodiscard]] bool AwaitInput(int fd);

 private:
  void Run();
  void OnSignal();

  CallCancel cancel_;
  int signals_ = -1;  // signalfd
  int came_ = -1;     // eventfd, readable once a signal came
  int stop_ = -1;     // eventfd
  int look_ = -1;     // eventfd: read_by_ has changed
  std::atomic<int> signal_{0};
  std::atomic<int> read_by_{-1};
  std::thread thread_;
};

}  // namespace larder::cli
