// Ctrl-C (SIGINT) and SIGTERM: the first signal cancels the calls that are given cancel(), the one
// under way and later ones; the second ends the process at once.
//
// Ownership: main owns the only one, which outlives every call.
// Thread-safety: all methods may be called from any thread.
// Lifecycle: main makes it before any other thread, so that every thread inherits the signal mask
// that blocks both signals.
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
  // Returns the first signal that has arrived, or 0 if none has.
  [[nodiscard]] int signal() const;
  // Sleeps for `how_long`, but at most 24 hours.  Returns false if a signal arrived before that
  // time had passed.
  [[nodiscard]] bool Sleep(std::chrono::milliseconds how_long);
  // From now on this process ends, as by SIGPIPE, when the last reader of `fd`, a pipe or socket,
  // has gone.  Without this, a larderctl watch that waits for events would notice only when it
  // writes.
  void EndWithReaderOf(int fd);
  // Waits until `fd` is readable or a signal has arrived.  Returns false after a signal.
  [[nodiscard]] bool AwaitInput(int fd);

 private:
  void Run();
  void OnSignal();

  CallCancel cancel_;
  int signals_ = -1;  // signalfd
  int came_ = -1;     // eventfd, readable once a signal has arrived
  int stop_ = -1;     // eventfd: the destructor ends the thread
  int look_ = -1;     // eventfd: read_by_ has changed
  std::atomic<int> signal_{0};
  std::atomic<int> read_by_{-1};
  std::thread thread_;
};

}  // namespace larder::cli
