// Turns signals into calls on a thread of its own, where anything may be done.
//
// SIGTERM and SIGINT call `on_end`, the first time; the second one ends the process at once. SIGHUP
// calls `on_hangup`.  SIGPIPE is ignored: a peer that went away is an error of the write.
// Also the pulse for a service manager's watchdog: a thread that does nothing else and wakes now
// and then.  What the handlers do not return from stops the pulse.
//
// Ownership: of its thread.  Thread-safety: one thread makes and destroys it.
// Lifecycle: BlockSignals before any thread of the process is started -> SignalThread -> destroyed
// (joins).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "storage/clock.h"

namespace larder {

// In the calling thread and all that it starts from now on.
void BlockSignals();

class SignalThread {
 public:
  struct Handlers {
    std::function<void(int signal)> on_end;
    std::function<void()> on_hangup;
    std::function<void()> on_pulse;
    std::optional<Duration> pulse;  // how often on_pulse is called; nullopt: never
    int second_signal_exit_code = 1;
  };

  // Unavailable: no descriptor left.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SignalThread>> Start(Handlers handlers);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  SignalThread(Handlers handlers, int signal_fd, int stop_fd);
  void Run();
  void OnSignal();

  const Handlers handlers_;
  const int signal_fd_;
  const int stop_fd_;
  bool ending_ = false;  // the thread's own
  std::thread thread_;
};

}  // namespace larder
