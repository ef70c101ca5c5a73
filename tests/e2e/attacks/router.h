// A router as other programs have it: it knows the protos alone.  Looks up, on a connection that
// stays and on new ones, pins and unpins, and watches events, until it is told to end; says of each
// call how it went (bystander_record.h).
//
// It speaks to control.sock where the daemon has one, else to data.sock.
// Ownership: its threads and connections, until it returns.  Thread-safety: one call a process.
#pragma once

#include <unistd.h>

#include <csignal>
#include <string>

namespace larder::e2e {

// Where routers and operators ask, in the directory of the socket files.
[[nodiscard]] inline std::string ControlSocketIn(const std::string& dir) {
  const std::string control = dir + "/control.sock";
  return access(control.c_str(), F_OK) == 0 ? control : dir + "/data.sock";
}

// Returns when `end_asked` is not 0, with the program's exit code.
[[nodiscard]] int RunRouter(const std::string& dir, const volatile std::sig_atomic_t& end_asked);

}  // namespace larder::e2e
