// Reports the state of the daemon to the service manager (systemd): READY, STOPPING, STATUS,
// WATCHDOG.
//
// The methods that report do nothing without $NOTIFY_SOCKET, and none of them fails.  They do not
// wait for the manager if its address is a path or abstract: a manager that does not listen must
// not stop the daemon.  If the manager's queue is full, a report other than StillAlive is kept and
// sent with a later one; of several statuses only the newest is kept.
// Ownership: this object owns a socket once it has reported to a path or an abstract address.
// Thread-safety: all methods may be called from any thread, as long as no thread changes the
// environment.
// Lifecycle: outlives the threads that report through it.
#pragma once

#include <optional>
#include <string>

#include "proto/frames/file_descriptor.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class ServiceManager {
 public:
  void Ready(const std::string& status);   // the daemon serves; called once
  void Status(const std::string& status);  // a sentence for `systemctl status`
  // Reports that the daemon drains, and asks the manager not to kill it within `limit`, even if
  // TimeoutStopSec is less.
  void Stopping(const std::string& status, Duration limit);
  void StillAlive();  // WATCHDOG=1

  // Returns how often the daemon must check whether it may call StillAlive: a quarter of the unit's
  // WatchdogSec, since a check evaluates the answers to the check before it.  Returns nullopt if
  // the unit has no watchdog.
  [[nodiscard]] std::optional<Duration> WatchdogInterval() const;

 private:
  // Tries to send an event and a status, after the events that are kept.  `event` consists of whole
  // lines, or is empty.
  void Tell(const std::string& event, const std::string& status) LARDER_EXCLUDES(mu_);
  // Tries to send everything that is kept, and `now`.  If the manager's queue is full, only `now`
  // is lost.
  void TellKept(const std::string& now) LARDER_REQUIRES(mu_);

  Mutex mu_;
  FileDescriptor socket_ LARDER_GUARDED_BY(mu_);
  std::string events_ LARDER_GUARDED_BY(mu_);  // lines not sent yet, in their order
  std::string status_ LARDER_GUARDED_BY(mu_);  // the newest status line, if it is not sent yet
};

}  // namespace larder
