// A session and its client, as objects of Python.
//
// Ownership: a PySession keeps its client alive, and each call keeps the session alive.
// Thread-safety: the caller holds the GIL.
#pragma once

#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/engine/directive_inbox.h"
#include "client/paged_cache.h"
#include "client/python/binding.h"
#include "client/python/pages.h"
#include "cuda/device.h"

namespace larder::python {

// Raises ValueError for another word than those of Client.attach.
[[nodiscard]] Role RoleOf(const std::string& role);
// Returns options with this deadline.  Raises ValueError unless it is above 0.
[[nodiscard]] CallOptions Within(double deadline_s);
// Raises ValueError, which names the argument, unless 0 <= seconds <= most.
[[nodiscard]] std::chrono::milliseconds Milliseconds(double seconds, const char* name, double most);

// A session with what it needs.  Its end may wait for the daemon, so the GIL is released meanwhile.
struct SessionParts {
  SessionParts(std::shared_ptr<Client> c, std::unique_ptr<Device> d,
               std::shared_ptr<DirectiveInbox> i, std::unique_ptr<Session> s)
      : client(std::move(c)), device(std::move(d)), inbox(std::move(i)), session(std::move(s)) {}
  SessionParts(const SessionParts&) = delete;
  SessionParts& operator=(const SessionParts&) = delete;
  ~SessionParts() {
    std::optional<WithoutGil> released;
    if (PyGILState_Check() != 0) released.emplace();
    idle.clear();
    CloseInbox();  // the session's end waits for a directive under way
    session.reset();
    device.reset();
  }

  // A forked child has no thread that could unlock the inbox.
  void CloseInbox() const {
    if (inbox != nullptr && getpid() == process) inbox->Close();
  }

  const pid_t process = getpid();
  std::shared_ptr<Client> client;
  std::unique_ptr<Device> device;         // that has the engine's pages
  std::shared_ptr<DirectiveInbox> inbox;  // null: the session takes no directives
  std::unique_ptr<Session> session;
  // Caches of pages that no call uses now: making one costs as much as moving some MiB.  The GIL
  // guards them.
  struct IdleCache {
    uint32_t variant;
    Pages pages;
    std::unique_ptr<PagedCache> cache;
  };
  std::vector<IdleCache> idle;
};

// A Session for Python.  The session ends once Close was called (by close(), or by the destructor),
// no call on it is under way, and every Promise, Lease, Reservation, Directive and Restorer of it
// has gone.  A call that waits for a directive ends at Close.
class PySession {
 public:
  explicit PySession(std::shared_ptr<SessionParts> parts) : parts_(std::move(parts)) {}

  // Returns the session's parts, which live as long as the returned pointer.  Raises ValueError if
  // the session is closed.
  [[nodiscard]] std::shared_ptr<SessionParts> Parts() const {
    if (parts_ == nullptr) Raise(absl::InvalidArgumentError("the session is closed"));
    return parts_;
  }
  // The same for the session alone.
  [[nodiscard]] std::shared_ptr<Session> Open() const {
    const std::shared_ptr<SessionParts> parts = Parts();
    return {parts, parts->session.get()};
  }
  void Close() {
    if (parts_ != nullptr) parts_->CloseInbox();
    parts_.reset();
  }

 private:
  std::shared_ptr<SessionParts> parts_;  // null: closed
};

// They add methods to the bound class of PySession.
void BindInPlace(nb::module_& module, nb::class_<PySession>& session);
void BindDirectives(nb::module_& module, nb::class_<PySession>& session);

}  // namespace larder::python
