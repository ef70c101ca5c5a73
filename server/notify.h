// Tells the service manager (systemd) how the daemon is: READY, STOPPING, STATUS, WATCHDOG.
//
// Everything is a no-op without $NOTIFY_SOCKET, and nothing ever fails: a manager that does not
// listen must not stop the daemon.
// Thread-safety: all functions from any thread, as long as nobody changes the environment.
#pragma once

#include <optional>
#include <string>

#include "storage/clock.h"

namespace larder {

class ServiceManager {
 public:
  void Ready(const std::string& status) const;   // it serves; once
  void Status(const std::string& status) const;  // a sentence for `systemctl status`
  // It drains, and may take so long without being killed for it, whatever TimeoutStopSec says.
  void Stopping(const std::string& status, Duration limit) const;
  void StillAlive() const;  // WATCHDOG=1

  // How often to look whether to say StillAlive: a quarter of the unit's WatchdogSec, since what is
  // found at one look is told at the next; nullopt: it does not want to know.
  [[nodiscard]] std::optional<Duration> WatchdogInterval() const;
};

}  // namespace larder
