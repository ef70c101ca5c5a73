#include "server/runtime/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace larder {
namespace {

// The manager reads every line as a separate assignment, so a text must not contain newlines.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Returns false if the text cannot be sent to `path` without waiting, and true otherwise, even if
// it could not be sent.  sd_notify would wait instead.
bool SendNow(const FileDescriptor& socket, std::string_view path, std::string_view text) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) return true;
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';  // an abstract address
  const size_t size = offsetof(sockaddr_un, sun_path) + path.size();
  return sendto(socket.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(size)) >= 0 ||
         errno != EAGAIN;
}

}  // namespace

void ServiceManager::Ready(const std::string& status) { Tell("READY=1\n", status); }

void ServiceManager::Status(const std::string& status) { Tell("", status); }

void ServiceManager::Stopping(const std::string& status, Duration limit) {
  const auto usec = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
  Tell(absl::StrCat("STOPPING=1\nEXTEND_TIMEOUT_USEC=", usec, "\n"), status);
}

void ServiceManager::StillAlive() {
  MutexLock lock(mu_);
  TellKept("WATCHDOG=1\n");
}

void ServiceManager::Tell(const std::string& event, const std::string& status) {
  MutexLock lock(mu_);
  events_ += event;
  status_ = absl::StrCat("STATUS=", OneLine(status), "\n");
  TellKept("");
}

void ServiceManager::TellKept(const std::string& now) {
  const char* const path = getenv("NOTIFY_SOCKET");
  const std::string text = absl::StrCat(events_, now, status_);
  bool told = true;
  if (path != nullptr && (path[0] == '/' || path[0] == '@')) {
    if (!socket_) socket_ = FileDescriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    told = socket_ && SendNow(socket_, path, text);
  } else if (path != nullptr) {
    sd_notify(/*unset_environment=*/0, text.c_str());  // supports the other kinds of addresses
  }
  if (!told) return;
  events_.clear();
  status_.clear();
}

std::optional<Duration> ServiceManager::WatchdogInterval() const {
  uint64_t usec = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &usec) <= 0 || usec < 4) return std::nullopt;
  return std::chrono::microseconds(usec / 4);
}

}  // namespace larder
