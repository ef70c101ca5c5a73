#include "server/notify.h"

#include <systemd/sd-daemon.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace larder {
namespace {

// Lines are assignments of their own to the manager.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void Send(const std::string& state) { sd_notify(/*unset_environment=*/0, state.c_str()); }

}  // namespace

void ServiceManager::Ready(const std::string& status) const {
  Send(absl::StrCat("READY=1\nSTATUS=", OneLine(status)));
}

void ServiceManager::Status(const std::string& status) const {
  Send(absl::StrCat("STATUS=", OneLine(status)));
}

void ServiceManager::Stopping(const std::string& status, Duration limit) const {
  const auto usec = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
  Send(absl::StrCat("STOPPING=1\nEXTEND_TIMEOUT_USEC=", usec, "\nSTATUS=", OneLine(status)));
}

void ServiceManager::StillAlive() const { Send("WATCHDOG=1"); }

std::optional<Duration> ServiceManager::WatchdogInterval() const {
  uint64_t usec = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &usec) <= 0 || usec < 4) return std::nullopt;
  return std::chrono::microseconds(usec / 4);
}

}  // namespace larder
