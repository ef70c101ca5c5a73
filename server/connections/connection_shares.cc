#include "server/connections/connection_shares.h"

#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {
namespace {

template <class Map, class Key>
size_t CountOf(const Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

template <class Map, class Key>
void TakeOne(Map& map, const Key& key) {
  const auto found = map.find(key);
  LARDER_CHECK(found != map.end());
  if (--found->second == 0) map.erase(found);
}

}  // namespace

std::optional<SocketPeer> PeerOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return SocketPeer{.uid = peer.uid, .pid = peer.pid};
}

ShareRefusal ConnectionShares::Take(const SocketPeer& peer) {
  const Process process{peer.uid, peer.pid};
  if (peer.pid != 0 && CountOf(per_process_, process) >= limits_.per_process) {
    return ShareRefusal::kProcess;
  }
  if (CountOf(per_uid_, peer.uid) >= limits_.per_uid) return ShareRefusal::kUid;
  if (count_ >= limits_.all) return ShareRefusal::kAll;
  ++per_process_[process];
  ++per_uid_[peer.uid];
  ++count_;
  return ShareRefusal::kNone;
}

void ConnectionShares::Give(const SocketPeer& peer) {
  TakeOne(per_process_, Process{peer.uid, peer.pid});
  TakeOne(per_uid_, peer.uid);
  --count_;
}

std::string ConnectionShares::Explain(ShareRefusal refusal, const char* what) const {
  const auto explain = [what](const char* who, size_t limit, const char* first,
                              const char* option) {
    return absl::StrCat(who, " has at most ", limit, " ", what, "; ", first,
                        option == nullptr ? "" : absl::StrCat(", or raise ", option));
  };
  switch (refusal) {
    case ShareRefusal::kProcess:
      return explain("a process", limits_.per_process, "close one", limits_.process_option);
    case ShareRefusal::kUid:
      return explain("a uid", limits_.per_uid, "close one", limits_.others_option);
    case ShareRefusal::kAll:
    case ShareRefusal::kNone:
      break;
  }
  return explain("the daemon", limits_.all, "try again later", limits_.others_option);
}

void ConnectionCounters::Count(ShareRefusal refusal) {
  if (refusal == ShareRefusal::kAll) ++over_all;
  if (refusal == ShareRefusal::kUid) ++over_uid;
  if (refusal == ShareRefusal::kProcess) ++over_process;
}

}  // namespace larder
