// Tells the service manager (systemd) how the daemon is: READY, STOPPING, STATUS, WATCHDOG.
//
// Everything is a no-op without $NOTIFY_SOCKET, and nothing ever fails or waits: a manager that
// does not listen must not stop the daemon.  What does not fit into the manager's queue is kept and
// told with what is told next, the newest status alone; StillAlive comes at each pulse.
// Ownership: a socket, from the first word on.
// Thread-safety: all functions from any thread, as long as nobody changes the environment.
// Lifecycle: outlives the threads that tell it things.
#pragma once

#include <optional>
#include <string>

#include "proto/frames/file_descriptor.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class ServiceManager {
 public:
  void Ready(const std::string& status);   // it serves; once
  void Status(const std::string& status);  // a sentence for `systemctl status`
  // It drains, and may take so long without being killed for it, whatever TimeoutStopSec says.
  void Stopping(const std::string& status, Duration limit);
  void StillAlive();  // WATCHDOG=1

  // How often to look whether to say StillAlive: a quarter of the unit's WatchdogSec, since what is
  // found at one look is told at the next; nullopt: it does not want to know.
  [[nodiscard]] std::optional<Duration> WatchdogInterval() const;

 private:
  // `event` is a line of its own, or empty; so is what is kept.
  void Tell(const std::string& event, const std::string& status) LARDER_EXCLUDES(mu_);
  // Tells `now`, which is of this moment alone, and all that is kept.
  void TellKept(const std::string& now) LARDER_REQUIRES(mu_);

  Mutex mu_;
  FileDescriptor socket_ LARDER_GUARDED_BY(mu_);
  std::string events_ LARDER_GUARDED_BY(mu_);  // kept: lines, in their order
  std::string status_ LARDER_GUARDED_BY(mu_);  // likewise: the line of the newest one
};

}  // namespace larder
