// A session and its client, as objects of Python.
//
// Ownership: a PySession keeps its client alive, and each call keeps the session alive.
// Thread-safety: the caller holds the GIL.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "client/client.h"
#include "client/python/binding.h"
#include "cuda/device.h"

namespace larder::python {

// Returns options with this deadline.  Raises ValueError unless it is above 0.
[[nodiscard]] CallOptions Within(double deadline_s);
// Raises ValueError, which names the argument, unless 0 <= seconds <= most.
[[nodiscard]] std::chrono::milliseconds Milliseconds(double seconds, const char* name, double most);

// A Session for Python.  The session ends once Close was called (by close(), or by the destructor),
// no call on it is under way, and every Promise and Restorer of it has gone.
class PySession {
 public:
  PySession(std::shared_ptr<Client> client, std::unique_ptr<Device> device,
            std::unique_ptr<Session> session)
      : parts_(std::make_shared<Parts>(std::move(client), std::move(device), std::move(session))) {}
  ~PySession() { Close(); }

  // Returns the session.  The returned pointer keeps it, its device and its client alive.  Raises
  // ValueError if the session is closed.
  [[nodiscard]] std::shared_ptr<Session> Open() const {
    if (parts_ == nullptr) Raise(absl::InvalidArgumentError("the session is closed"));
    return {parts_, parts_->session.get()};
  }
  // The memory of the host, which lives as long as what Open returned before.  REQUIRES: the caller
  // has held the GIL since Open.
  [[nodiscard]] Device& device() const { return *parts_->device; }
  void Close() { parts_.reset(); }

 private:
  struct Parts {
    Parts(std::shared_ptr<Client> c, std::unique_ptr<Device> d, std::unique_ptr<Session> s)
        : client(std::move(c)), device(std::move(d)), session(std::move(s)) {}
    Parts(const Parts&) = delete;
    Parts& operator=(const Parts&) = delete;
    // The end of a session may wait for the daemon, so other threads of Python run meanwhile.
    ~Parts() {
      std::optional<nb::gil_scoped_release> released;
      if (PyGILState_Check() != 0) released.emplace();
      session.reset();
      device.reset();
    }
    std::shared_ptr<Client> client;
    std::unique_ptr<Device> device;
    std::unique_ptr<Session> session;
  };
  std::shared_ptr<Parts> parts_;  // null: closed
};

}  // namespace larder::python
