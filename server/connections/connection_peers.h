// The users at the other end of the connections that AcceptLoop hands to gRPC, by the name that
// gRPC gives a connection that it received as a descriptor: "fd:12" (ServerContext::peer).
//
// A caller that shows no sideband token is charged to the user that the kernel reports for its
// connection; this class finds that user.
// Ownership: Daemon owns it; it outlives the servers and borrows the shares.
// Thread-safety: all methods may be called from any thread.
// Locks: mu_ is a leaf.
// Lifecycle of an entry: Put before gRPC gets the connection -> Forget when the AcceptLoop finds it
// closed, or Put of a later connection with the same descriptor number.
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
  // Returns the account of the user at the other end of the connection that gRPC calls `name`
  // ("fd:12"), for calls without a sideband token.  Returns nullopt if the connection has no entry.
  [[nodiscard]] std::optional<Shares::Account> AccountOf(const std::string& name) const
      LARDER_EXCLUDES(mu_);

 private:
  Shares& shares_;
  mutable Mutex mu_;
  absl::flat_hash_map<int, Shares::Account> accounts_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
