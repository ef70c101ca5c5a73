#include "server/processes/sideband.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "server/connections/passed_rights.h"
#include "server/runtime/epoll.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/status_macros.h"
#include "storage/thread_priority.h"

namespace larder {
namespace {

constexpr uint64_t kWake = 0;  // ids of the listening socket and of connections are greater
constexpr const char* kConnections = "sideband connections";

absl::Status WatchSocket(int epoll, int fd, uint64_t id) {
  if (AddToEpoll(epoll, fd, EPOLLIN, id)) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot watch a sideband socket");
}

}  // namespace

absl::Status Sideband::Options::Validate() const {
  LARDER_RETURN_IF_ERROR(ListeningSocket::Options{.path = path}.Validate());
  if (connections.all == 0 || connections.per_uid == 0 || connections.per_process == 0) {
    return absl::InvalidArgumentError("the limits of sideband connections must be at least 1");
  }
  if (handshake_deadline <= std::chrono::milliseconds(0)) {
    return absl::InvalidArgumentError("the deadline of the handshake must be positive");
  }
  return absl::OkStatus();
}

Sideband::Sideband(const Options& options, WakeUp wake, SidebandHost& host, ProcessTable& processes,
                   StagingTable& staging)
    : options_(options),
      staging_(staging),
      context_{.host = host,
               .processes = processes,
               .staging = staging,
               .shares = shares_,
               .counters = counters_,
               .trusted_uids = options_.trusted_uids},
      dead_(std::move(wake)),
      last_id_(kWake),
      places_(options_.connections) {}

Sideband::~Sideband() {
  if (thread_.joinable()) {
    dead_.Stop();
    thread_.join();
  }
}

absl::StatusOr<std::unique_ptr<Sideband>> Sideband::Create(const Options& options,
                                                           SidebandHost& host,
                                                           ProcessTable& processes,
                                                           StagingTable& staging) {
  LARDER_RETURN_IF_ERROR(options.Validate());
  LARDER_ASSIGN_OR_RETURN(WakeUp wake, WakeUp::Open("cannot open the sideband's loop"));
  auto sideband =
      absl::WrapUnique(new Sideband(options, std::move(wake), host, processes, staging));
  LARDER_ASSIGN_OR_RETURN(auto listener, ListeningSocket::Open({.path = options.path,
                                                                .type = SOCK_SEQPACKET,
                                                                .mode = options.mode,
                                                                .handed_over = options.listener}));
  sideband->door_.emplace("sideband.sock", std::move(listener), sideband->counters_.door,
                          options.report);
  LARDER_RETURN_IF_ERROR(sideband->OpenLoop());
  return sideband;
}

absl::Status Sideband::OpenLoop() {
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return absl::ErrnoToStatus(errno, "cannot open the sideband's loop");
  LARDER_RETURN_IF_ERROR(WatchSocket(epoll_.get(), dead_.fd(), kWake));
  WatchDoor();
  if (watched_ < 0) return absl::ErrnoToStatus(errno, "cannot watch the sideband's socket");
  return absl::OkStatus();
}

void Sideband::Start() {
  LARDER_CHECK(!thread_.joinable());
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "sideband");
    SetThreadPriority(ThreadPriority::kUrgent);
    Run();
  });
}

void Sideband::OnProcessDeath(ProcessId process) {
  staging_.DropProcess(process);
  shares_.DropProcess(process);
  dead_.Push(process);
}

void Sideband::Ask() {
  heartbeat_.Ask();
  dead_.Wake();
}

void Sideband::Run() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), WaitMs());
    LARDER_CHECK(ready >= 0 || errno == EINTR);
    for (int i = 0; i < ready; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kWake) {
        dead_.Clear();
        heartbeat_.Answer();
      } else if (id == door_id_) {
        Accept(events[static_cast<size_t>(i)].events);
      } else if (const auto found = connections_.find(id); found != connections_.end()) {
        if (!found->second.connection->OnReadable()) Close(id);
      }
    }
    CloseLate();
    CloseDead();
    door_->Check(SteadyNow());
    WatchDoor();
    if (dead_.stopped()) break;
  }
  while (!connections_.empty()) Close(connections_.begin()->first);
}

void Sideband::Accept(uint32_t events) {
  const int at = watched_;
  for (int i = 0; i < Doorkeeper::kBatch; ++i) {
    FileDescriptor socket = door_->Accept(SteadyNow());
    if (!socket) break;  // a failed Accept may have replaced the listening socket
    Admit(std::move(socket));
  }
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) door_->OnHangup(at, SteadyNow());
  WatchDoor();
}

void Sideband::WatchDoor() {
  const int wanted = door_->fd(SteadyNow());
  if (wanted == watched_) return;
  if (watched_ >= 0) (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched_, nullptr);
  // A new id each time: events of a former socket, which another thread may still be closing, carry
  // a former id and are ignored.
  door_id_ = ++last_id_;
  watched_ = wanted >= 0 && WatchSocket(epoll_.get(), wanted, door_id_).ok() ? wanted : -1;
}

void Sideband::Admit(FileDescriptor socket) {
  // If the listener was handed over, the peer may have sent descriptors before this call.
  const bool refuses = RefuseRights(socket.get()) && door_->refuses_rights();
  const std::optional<SocketPeer> peer = PeerOf(socket.get());
  const int on = 1;  // makes the kernel attach credentials to every packet
  if (!peer || setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    return CloseSocket(std::move(socket), refuses);
  }
  const int fd = socket.get();
  auto connection = std::make_unique<SidebandConnection>(context_, std::move(socket), refuses);
  absl::Status status;
  const ShareRefusal refusal = places_.Take(*peer);
  if (refusal != ShareRefusal::kNone) {
    status = absl::ResourceExhaustedError(places_.Explain(refusal, kConnections));
    door_->TellRefused(
        peer->uid, [&] { return std::string(status.message()); }, SteadyNow());
  }
  const uint64_t id = ++last_id_;
  if (status.ok()) {
    status = WatchSocket(epoll_.get(), fd, id);
    if (!status.ok()) places_.Give(*peer);
  }
  if (!status.ok()) {
    ++counters_.over_limit;
    connection->Refuse(status);
    return;
  }
  connections_.try_emplace(id, Connection{.peer = *peer, .connection = std::move(connection)});
  ++counters_.connections_open;
  handshakes_.push_back({.deadline = SteadyNow() + options_.handshake_deadline, .id = id});
}

void Sideband::Close(uint64_t id) {
  const auto found = connections_.find(id);
  places_.Give(found->second.peer);
  // Another thread may close the socket later (CloseSocket); until then epoll could report the
  // socket again and again.
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.connection->socket(), nullptr);
  connections_.erase(found);
  --counters_.connections_open;
}

void Sideband::CloseLate() {
  const Time now = SteadyNow();
  while (!handshakes_.empty()) {
    const Handshake handshake = handshakes_.front();
    const auto found = connections_.find(handshake.id);
    const bool pending = found != connections_.end() && !found->second.connection->welcomed();
    if (pending && handshake.deadline > now) return;
    handshakes_.pop_front();
    if (!pending) continue;
    ++counters_.handshake_late;
    found->second.connection->Refuse(
        absl::DeadlineExceededError("the handshake was not completed in time"));
    Close(handshake.id);
  }
}

void Sideband::CloseDead() {
  for (const ProcessId process : dead_.Take()) {
    std::vector<uint64_t> ids;
    for (const auto& [id, c] : connections_) {
      if (c.connection->welcomed() && c.connection->process() == process) ids.push_back(id);
    }
    for (const uint64_t id : ids) Close(id);
    // Dropped again: a packet that this thread was handling may have added staging segments or
    // shared memory since OnProcessDeath.
    staging_.DropProcess(process);
    shares_.DropProcess(process);
  }
}

int Sideband::WaitMs() const {
  const Time now = SteadyNow();
  Time until = door_->due(now);
  if (!handshakes_.empty()) until = std::min(until, handshakes_.front().deadline);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

}  // namespace larder
