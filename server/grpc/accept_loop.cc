#include "server/grpc/accept_loop.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <grpcpp/server_posix.h>

#include "absl/strings/str_cat.h"
#include "server/connections/passed_rights.h"
#include "server/grpc/guarded_calls.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/thread_priority.h"

namespace larder {
namespace {

constexpr const char* kConnections = "connections here";

ino_t InodeOf(int fd) {
  struct stat st {};
  return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

// Returns true if the peer has closed its end, so that no answer could reach it.
bool HasHungUp(int socket) {
  pollfd polled{.fd = socket, .events = 0, .revents = 0};
  return poll(&polled, 1, 0) > 0 && (polled.revents & POLLHUP) != 0;
}

}  // namespace

AcceptLoop::AcceptLoop(std::vector<Endpoint> endpoints, ConnectionPeers& peers,
                       IncomingMessages& incoming, const Doorkeeper::Report& report)
    : peers_(peers), incoming_(incoming), wake_(WakeUp::Open("cannot accept").value()) {
  for (Endpoint& endpoint : endpoints) {
    counters_.push_back(endpoint.counters);
    served_.emplace_back(std::move(endpoint), report);
  }
  MutexLock lock(mu_);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "accept");
    SetThreadPriority(ThreadPriority::kUrgent);
    Run();
  });
}

AcceptLoop::~AcceptLoop() { Stop(); }

void AcceptLoop::Stop() {
  stop_.store(true);
  wake_.Wake();
  MutexLock lock(mu_);
  if (!thread_.joinable()) return;
  thread_.join();
  served_.clear();
}

void AcceptLoop::Ask() {
  heartbeat_.Ask();
  wake_.Wake();
}

bool AcceptLoop::Accepting() const {
  return std::ranges::all_of(counters_, [](const auto* socket) { return socket->broken == 0; });
}

void AcceptLoop::Run() {
  std::vector<pollfd> fds(served_.size() + 1);
  while (!stop_.load()) {
    const Time before = SteadyNow();
    fds[0] = {wake_.fd(), POLLIN, 0};
    for (size_t i = 0; i < served_.size(); ++i) {
      fds[i + 1] = {served_[i].door.fd(before), POLLIN, 0};
    }
    const int ready = poll(fds.data(), fds.size(), WaitMs(before));
    LARDER_CHECK(ready >= 0 || errno == EINTR || errno == ENOMEM);
    if (ready > 0 && fds[0].revents != 0) wake_.Clear();
    heartbeat_.Answer();
    for (size_t i = 0; ready > 0 && i < served_.size(); ++i) {
      const pollfd& polled = fds[i + 1];
      if (polled.revents != 0) AcceptSome(i);
      if ((polled.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
        served_[i].door.OnHangup(polled.fd, SteadyNow());
      }
    }
    const Time now = SteadyNow();
    if (now >= next_check_) {
      next_check_ = now + kCheckEvery;
      ForgetClosed(now);
    }
    for (Served& served : served_) served.door.Check(now);
  }
}

int AcceptLoop::WaitMs(Time now) const {
  Time until = next_check_;
  for (const Served& served : served_) until = std::min(until, served.door.due(now));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, kCheckEvery.count()));
}

void AcceptLoop::AcceptSome(size_t endpoint) {
  for (int i = 0; i < Doorkeeper::kBatch && !stop_.load(); ++i) {
    FileDescriptor socket = served_[endpoint].door.Accept(SteadyNow());
    if (!socket) return;
    Admit(endpoint, std::move(socket));
  }
}

void AcceptLoop::Admit(size_t endpoint, FileDescriptor socket) {
  Served& served = served_[endpoint];
  const bool always_refused = served.door.refuses_rights();
  const bool refuses = always_refused || RefuseRights(socket.get());
  const std::optional<SocketPeer> peer = PeerOf(socket.get());
  if (!peer) return CloseSocket(std::move(socket), always_refused);
  // The peer may have sent descriptors before the connection was accepted.
  if (!always_refused && StreamCarriesRights(socket.get())) {
    ++served.counters.carried_rights;
    return CloseSocket(std::move(socket), false);
  }
  if (HasHungUp(socket.get())) return CloseSocket(std::move(socket), always_refused);
  const bool own = peer->pid == getpid();
  const ShareRefusal refusal = own ? ShareRefusal::kNone : TakePlace(served, *peer);
  if (refusal != ShareRefusal::kNone) {
    served.counters.Count(refusal);
    CloseSocket(std::move(socket), always_refused);
    return served.door.TellRefused(
        peer->uid, [&] { return served.shares.Explain(refusal, kConnections); }, SteadyNow());
  }
  if (!refuses) (void)GuardSocket(socket.get());  // larderd warned if guards do not work
  HandOver(endpoint, std::move(socket), *peer, own);
}

ShareRefusal AcceptLoop::TakePlace(Served& served, const SocketPeer& peer) {
  const ShareRefusal refusal = served.shares.Take(peer);
  if (refusal == ShareRefusal::kNone) return refusal;
  const Time now = SteadyNow();
  if (now < forgot_ + kCheckAgain) return refusal;
  ForgetClosed(now);
  return served.shares.Take(peer);
}

void AcceptLoop::HandOver(size_t endpoint, FileDescriptor socket, const SocketPeer& peer,
                          bool own) {
  const int fd = socket.Release();
  // The number may still be registered for a connection that gRPC has closed since.
  if (const auto found = connections_.find(fd); found != connections_.end()) {
    GiveBack(found->second);
    connections_.erase(found);
  }
  connections_.try_emplace(
      fd, Connection{.inode = InodeOf(fd), .endpoint = endpoint, .peer = peer, .own = own});
  Served& served = served_[endpoint];
  ++served.counters.open;
  // gRPC names the connection by the number of its descriptor, by which services look up its peer.
  peers_.Put(fd, peer);
  if (!own) incoming_.Watch(fd, peer, served.counters.held_most);
  grpc::AddInsecureChannelFromFd(&served.servers.Enter(peer.uid), fd);
}

void AcceptLoop::GiveBack(const Connection& connection) {
  Served& served = served_[connection.endpoint];
  if (!connection.own) served.shares.Give(connection.peer);
  served.servers.Leave(connection.peer.uid);
  --served.counters.open;
}

void AcceptLoop::ForgetClosed(Time now) {
  forgot_ = now;
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto connection = it++;
    if (InodeOf(connection->first) == connection->second.inode) continue;
    GiveBack(connection->second);
    peers_.Forget(connection->first);
    connections_.erase(connection);
  }
}

}  // namespace larder
