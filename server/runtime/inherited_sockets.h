// Sockets that the service manager listens on before the daemon is there (systemd's socket units):
// who connects while it starts, or starts again, waits instead of being refused.
//
// Ownership: the listening sockets; who uses them borrows.
// Thread-safety: Take before any thread is started; all else is constant.
// Lifecycle: Take once -> outlives the daemon.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"

namespace larder {

class InheritedSockets {
 public:
  struct Wanted {
    std::string path;
    int type = 0;  // SOCK_STREAM or SOCK_SEQPACKET
  };
  // What of `wanted` was handed to this process; often nothing.  FailedPrecondition: something
  // else was handed to it, with what to do.
  [[nodiscard]] static absl::StatusOr<InheritedSockets> Take(const std::vector<Wanted>& wanted);

  // -1: it was not handed over, so bind it.
  [[nodiscard]] int Find(const std::string& path) const;

 private:
  std::vector<std::pair<std::string, FileDescriptor>> sockets_;
};

}  // namespace larder
