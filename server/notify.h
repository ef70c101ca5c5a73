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
  void Stopping(const std::string& status) const;
  void StillAlive() const;  // WATCHDOG=1

  // How often it wants StillAlive: half of the unit's WatchdogSec; nullopt: not at all.
  [[nodiscard]] std::optional<Duration> WatchdogInterval() const;
};

}  // namespace larder
