#include "server/connection_peers.h"

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace larder {

void ConnectionPeers::Put(int fd, const SocketPeer& peer) {
  MutexLock lock(mu_);
  peers_.insert_or_assign(fd, peer);
}

void ConnectionPeers::Forget(int fd) {
  MutexLock lock(mu_);
  peers_.erase(fd);
}

std::optional<SocketPeer> ConnectionPeers::Of(const std::string& name) const {
  absl::string_view number = name;
  int fd = -1;
  if (!absl::ConsumePrefix(&number, "fd:") || !absl::SimpleAtoi(number, &fd)) return std::nullopt;
  MutexLock lock(mu_);
  const auto peer = peers_.find(fd);
  if (peer == peers_.end()) return std::nullopt;
  return peer->second;
}

}  // namespace larder
