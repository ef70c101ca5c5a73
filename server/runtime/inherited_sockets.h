// The sockets on which the service manager listens before the daemon runs (systemd's socket units),
// so that clients can connect while the daemon starts or restarts.
//
// Ownership: this object owns the listening sockets; the parts of the daemon that use them borrow
// them.
// Thread-safety: Take must be called before any thread is started; after that the object is
// constant.
// Lifecycle: Take is called once -> the object outlives the daemon.
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
  // Takes over the sockets that the service manager passed to this process; often there are none.
  // Returns FailedPrecondition if one of them is not among the `wanted` sockets, or if the
  // environment variables that announce the sockets are not valid.
  [[nodiscard]] static absl::StatusOr<InheritedSockets> Take(const std::vector<Wanted>& wanted);

  // Returns the descriptor of the socket at `path`, which this object still owns, or -1 if the
  // service manager passed no such socket, so that the caller must bind its own.
  [[nodiscard]] int Find(const std::string& path) const;

 private:
  std::vector<std::pair<std::string, FileDescriptor>> sockets_;
};

}  // namespace larder
