// Turns signals into calls on a dedicated thread, where the handlers may do anything.
//
// The first SIGTERM or SIGINT calls `on_end`; one that arrives later ends the process, once a
// handler that runs has returned.  SIGHUP calls `on_hangup`.  SIGPIPE is ignored: a write to a peer
// that has closed its connection returns an error instead.
// The thread also calls `on_pulse`, for a watchdog, about every `pulse` (if it is set) and more
// often when signals arrive, but not while another handler runs.
//
// Ownership: this object owns its thread.  Thread-safety: one thread creates and destroys it.
// Lifecycle: BlockSignals before any thread of the process is started -> SignalThread -> destroyed
// (joins its thread).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/wake_up.h"
#include "storage/clock.h"

namespace larder {

// Blocks SIGTERM, SIGINT and SIGHUP in the calling thread and in all threads that it starts from
// now on, and ignores SIGPIPE in the process.
void BlockSignals();

class SignalThread {
 public:
  struct Handlers {
    std::function<void(int signal)> on_end;
    std::function<void()> on_hangup;
    std::function<void()> on_pulse;
    std::optional<Duration> pulse;  // between calls of on_pulse, 1 ms to 1 h; nullopt: none
    int second_signal_exit_code = 1;
  };

  // Returns the kernel's error if a descriptor cannot be opened.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SignalThread>> Start(Handlers handlers);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  SignalThread(Handlers handlers, FileDescriptor signals, WakeUp stop);
  void Run();
  void OnSignal();

  const Handlers handlers_;
  const FileDescriptor signals_;  // a signalfd
  const WakeUp stop_;
  bool ending_ = false;  // used by the thread only
  std::thread thread_;
};

}  // namespace larder
