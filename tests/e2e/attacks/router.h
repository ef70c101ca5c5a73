// A router as other programs implement it, with the generated stubs alone.  Until it is told to
// end, it looks up blocks on one lasting connection and on new ones, fetches, pins and unpins, and
// watches events.  It writes a record of each call (bystander_record.h).
//
// It connects to control.sock if the daemon has one, otherwise to data.sock.
// Ownership: its threads and connections, until it returns.  Thread-safety: one call per process.
#pragma once

#include <unistd.h>

#include <csignal>
#include <string>

namespace larder::e2e {

// Returns the socket for routers and operators in the folder of the socket files.
[[nodiscard]] inline std::string ControlSocketIn(const std::string& dir) {
  const std::string control = dir + "/control.sock";
  return access(control.c_str(), F_OK) == 0 ? control : dir + "/data.sock";
}

// Returns when `end_asked` is not 0, with the program's exit code.
[[nodiscard]] int RunRouter(const std::string& dir, const volatile std::sig_atomic_t& end_asked);

}  // namespace larder::e2e
