#include "server/sideband.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {
namespace {

constexpr uint64_t kWake = 0;
constexpr uint64_t kListener = 1;  // connections come after

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // fits: Validate
  return address;
}

FileDescriptor OpenSocket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

FileDescriptor OpenSpare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

absl::Status Watch(int epoll, int fd, uint64_t id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "watching a sideband socket");
}

// OK when what lies at the path is a socket file of a daemon that is gone.
absl::Status CheckLeftOver(const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISSOCK(file.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is there and is no socket: remove it, or choose another directory"));
  }
  const FileDescriptor probe = OpenSocket();
  const sockaddr_un address = AddressOf(path);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("another larderd listens at ", path, ": stop it, or choose another directory"));
}

}  // namespace

absl::Status Sideband::Options::Validate() const {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path) ||
      path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the path of a socket file has 1 to ",
                                                   sizeof(sockaddr_un::sun_path) - 1, " bytes: \"",
                                                   path, "\"; choose a shorter socket directory"));
  }
  if (connections_max == 0 || connections_per_uid_max == 0) {
    return absl::InvalidArgumentError("limits of sideband connections are at least 1");
  }
  if (handshake_deadline <= std::chrono::milliseconds(0)) {
    return absl::InvalidArgumentError("the sideband's handshake needs some time");
  }
  return absl::OkStatus();
}

Sideband::Sideband(const Options& options, SidebandHost& host, ProcessTable& processes,
                   StagingTable& staging)
    : options_(options),
      staging_(staging),
      context_{.host = host,
               .processes = processes,
               .staging = staging,
               .shares = shares_,
               .counters = counters_,
               .trusted_uids = options_.trusted_uids},
      last_id_(kListener) {}

Sideband::~Sideband() {
  if (thread_.joinable()) {
    {
      MutexLock lock(mu_);
      stop_ = true;
    }
    LARDER_CHECK(eventfd_write(wake_.get(), 1) == 0);
    thread_.join();
  }
  struct stat now {};
  if (file_.inode != 0 && lstat(options_.path.c_str(), &now) == 0 && now.st_dev == file_.device &&
      now.st_ino == file_.inode) {
    unlink(options_.path.c_str());
  }
}

absl::StatusOr<std::unique_ptr<Sideband>> Sideband::Create(const Options& options,
                                                           SidebandHost& host,
                                                           ProcessTable& processes,
                                                           StagingTable& staging) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  auto sideband = absl::WrapUnique(new Sideband(options, host, processes, staging));
  if (absl::Status status = sideband->Listen(); !status.ok()) return status;
  if (absl::Status status = sideband->OpenLoop(); !status.ok()) return status;
  return sideband;
}

absl::Status Sideband::Bind() {
  const sockaddr_un address = AddressOf(options_.path);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (bind(listener_.get(), generic, sizeof address) == 0) return absl::OkStatus();
  if (errno != EADDRINUSE) return absl::ErrnoToStatus(errno, absl::StrCat("bind ", options_.path));
  if (absl::Status status = CheckLeftOver(options_.path); !status.ok()) return status;
  unlink(options_.path.c_str());
  if (bind(listener_.get(), generic, sizeof address) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("bind ", options_.path));
}

absl::Status Sideband::Listen() {
  if (options_.listener >= 0) {
    listener_ = FileDescriptor(fcntl(options_.listener, F_DUPFD_CLOEXEC, 0));
    if (!listener_ || fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0) {
      return absl::ErrnoToStatus(errno, "taking over the sideband's listener");
    }
    return absl::OkStatus();
  }
  listener_ = OpenSocket();
  if (!listener_) return absl::ErrnoToStatus(errno, "socket");
  if (absl::Status status = Bind(); !status.ok()) return status;
  struct stat file {};
  // Nobody can connect before listen, so the mode is right for the first who does.
  if (lstat(options_.path.c_str(), &file) != 0 ||
      chmod(options_.path.c_str(), options_.mode) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("chmod ", options_.path));
  }
  file_ = {.device = file.st_dev, .inode = file.st_ino};
  if (listen(listener_.get(), SOMAXCONN) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("listen at ", options_.path));
  }
  return absl::OkStatus();
}

absl::Status Sideband::OpenLoop() {
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_ = OpenSpare();
  if (!epoll_ || !wake_ || !spare_)
    return absl::ErrnoToStatus(errno, "opening the sideband's loop");
  if (absl::Status status = Watch(epoll_.get(), wake_.get(), kWake); !status.ok()) return status;
  return Watch(epoll_.get(), listener_.get(), kListener);
}

void Sideband::Start() {
  LARDER_CHECK(!thread_.joinable());
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "sideband");
    Run();
  });
}

void Sideband::OnProcessDeath(ProcessId process) {
  staging_.DropProcess(process);
  shares_.DropProcess(process);
  {
    MutexLock lock(mu_);
    dead_.push_back(process);
  }
  LARDER_CHECK(eventfd_write(wake_.get(), 1) == 0);
}

void Sideband::Ask() {
  heartbeat_.Ask();
  LARDER_CHECK(eventfd_write(wake_.get(), 1) == 0);
}

void Sideband::Run() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int ready = epoll_wait(epoll_.get(), events.data(), events.size(), WaitMs());
    LARDER_CHECK(ready >= 0 || errno == EINTR);
    for (int i = 0; i < ready; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kWake) {
        eventfd_t count;
        eventfd_read(wake_.get(), &count);
        heartbeat_.Answer();
      } else if (id == kListener) {
        Accept();
      } else if (const auto found = connections_.find(id); found != connections_.end()) {
        if (!found->second.connection->OnReadable()) Close(id);
      }
    }
    CloseLate();
    CloseDead();
    MutexLock lock(mu_);
    if (stop_) break;
  }
  while (!connections_.empty()) Close(connections_.begin()->first);
}

void Sideband::Accept() {
  FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) {
    ++counters_.accepted;
    Admit(std::move(socket));
  } else if (errno == EMFILE || errno == ENFILE) {
    AcceptAndDrop();
  }
  // All other errors are of the one connection, or come again.
}

// Without this, a connection that cannot be accepted would keep the loop spinning.
void Sideband::AcceptAndDrop() {
  ++counters_.over_limit;
  spare_ = FileDescriptor();
  FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  spare_ = OpenSpare();
}

void Sideband::Admit(FileDescriptor socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  const int on = 1;  // credentials come with every packet
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    return;
  }
  const int fd = socket.get();
  auto connection = std::make_unique<SidebandConnection>(context_, std::move(socket));
  absl::Status status = CheckRoom(peer.uid);
  const uint64_t id = ++last_id_;
  if (status.ok()) status = Watch(epoll_.get(), fd, id);
  if (!status.ok()) {
    ++counters_.over_limit;
    connection->Refuse(status);
    return;
  }
  connections_.try_emplace(id, Connection{.uid = peer.uid, .connection = std::move(connection)});
  ++per_uid_[peer.uid];
  ++counters_.connections_open;
  handshakes_.push_back(
      {.deadline = std::chrono::steady_clock::now() + options_.handshake_deadline, .id = id});
}

absl::Status Sideband::CheckRoom(uid_t uid) const {
  if (connections_.size() >= options_.connections_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the daemon has at most ", options_.connections_max,
                     " sideband connections; try again later, or raise the limit"));
  }
  const auto found = per_uid_.find(uid);
  if (found != per_uid_.end() && found->second >= options_.connections_per_uid_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a uid has at most ", options_.connections_per_uid_max,
                     " sideband connections; close one, or raise the limit"));
  }
  return absl::OkStatus();
}

void Sideband::Close(uint64_t id) {
  const auto found = connections_.find(id);
  const auto uid = per_uid_.find(found->second.uid);
  if (--uid->second == 0) per_uid_.erase(uid);
  connections_.erase(found);  // closing takes it out of the epoll: the socket was never duplicated
  --counters_.connections_open;
}

void Sideband::CloseLate() {
  const Time now = std::chrono::steady_clock::now();
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
  std::vector<ProcessId> dead;
  {
    MutexLock lock(mu_);
    dead.swap(dead_);
  }
  for (const ProcessId process : dead) {
    std::vector<uint64_t> ids;
    for (const auto& [id, c] : connections_) {
      if (c.connection->welcomed() && c.connection->process() == process) ids.push_back(id);
    }
    for (const uint64_t id : ids) Close(id);
    staging_.DropProcess(process);  // a packet of it may have been under way before
    shares_.DropProcess(process);
  }
}

int Sideband::WaitMs() const {
  if (handshakes_.empty()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(handshakes_.front().deadline -
                                                                 std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

}  // namespace larder
