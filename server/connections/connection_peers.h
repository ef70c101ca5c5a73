// Who is at the other end of each connection that gRPC serves, by the name that it gives a
// connection that it was handed as a descriptor: "fd:12" (ServerContext::peer).
//
// A caller that shows no sideband token is known by it: by its user, as the kernel named whoever
// connected.
// Ownership: Daemon owns it; it outlives the servers and borrows the shares.
// Thread-safety: all methods from any thread.
// Lifecycle: Put, before gRPC gets the connection -> Forget, when it is seen to be closed, or
// another Put of that descriptor number.
#pragma once

#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/connections/connection_shares.h"
#include "server/runtime/shares.h"
#include "storage/mutex.h"

namespace larder {

class ConnectionPeers {
 public:
  explicit ConnectionPeers(Shares& shares) : shares_(shares) {}

  void Put(int fd, const SocketPeer& peer) LARDER_EXCLUDES(mu_);
  void Forget(int fd) LARDER_EXCLUDES(mu_);
  // The account of the user at the other end, for calls without a token.  Returns nothing if `name`
  // names no connection that was Put.
  [[nodiscard]] std::optional<Shares::Account> AccountOf(const std::string& name) const
      LARDER_EXCLUDES(mu_);

 private:
  Shares& shares_;
  mutable Mutex mu_;
  absl::flat_hash_map<int, Shares::Account> accounts_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
