#include "server/connections/connection_peers.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace larder {

void ConnectionPeers::Put(int fd, const SocketPeer& peer) {
  Shares::Account account = shares_.Of(UnattachedOf(peer.uid));
  MutexLock lock(mu_);
  accounts_.insert_or_assign(fd, std::move(account));
}

void ConnectionPeers::Forget(int fd) {
  MutexLock lock(mu_);
  accounts_.erase(fd);
}

std::optional<Shares::Account> ConnectionPeers::AccountOf(const std::string& name) const {
  absl::string_view number = name;
  int fd = -1;
  if (!absl::ConsumePrefix(&number, "fd:") || !absl::SimpleAtoi(number, &fd)) return std::nullopt;
  MutexLock lock(mu_);
  const auto account = accounts_.find(fd);
  if (account == accounts_.end()) return std::nullopt;
  return account->second;
}

}  // namespace larder
