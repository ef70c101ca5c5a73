#include "server/sockets/session_loop.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "server/runtime/epoll.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/spin_wait.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr uint64_t kWake = 0;  // ids of sockets are greater

}  // namespace

absl::StatusOr<std::unique_ptr<SessionLoop>> SessionLoop::Start() {
  constexpr char kError[] = "cannot create a loop for session sockets";
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return absl::ErrnoToStatus(errno, kError);
  LARDER_ASSIGN_OR_RETURN(WakeUp wake, WakeUp::Open(kError));
  if (!AddToEpoll(epoll.get(), wake.fd(), EPOLLIN, kWake))
    return absl::ErrnoToStatus(errno, kError);
  return absl::WrapUnique(new SessionLoop(std::move(epoll), std::move(wake)));
}

SessionLoop::SessionLoop(FileDescriptor epoll, WakeUp wake)
    : epoll_(std::move(epoll)), woken_(std::move(wake)) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "session-loop");
    Run();
  });
}

SessionLoop::~SessionLoop() {
  woken_.Stop();
  thread_.join();
}

void SessionLoop::Add(std::unique_ptr<SessionSocket> socket) {
  const uint64_t id = socket->id();
  woken_.Push({.id = id, .added = std::move(socket)});
}

void SessionLoop::Wake(uint64_t id) { woken_.Push({.id = id, .added = nullptr}); }

void SessionLoop::Ask() {
  heartbeat_.Ask();
  woken_.Wake();
}

void SessionLoop::Run() {
  Events events;
  while (!woken_.stopped()) RunOnce(&events);
  TakeWoken();
  for (auto& [id, served] : served_) {
    served.socket->Finish(absl::UnavailableError("larderd is stopping"));
  }
  LookAtAll(SteadyNow());
  while (!served_.empty()) RunOnce(&events);
}

void SessionLoop::RunOnce(Events* events) {
  const int ready = Wait(events);
  const TimePoint now = SteadyNow();
  for (int i = 0; i < ready; ++i) {
    const uint64_t id = (*events)[static_cast<size_t>(i)].data.u64;
    if (id == kWake) {
      woken_.Clear();
      TakeWoken();
      heartbeat_.Answer();
    } else {
      LookAt(id, now, ((*events)[static_cast<size_t>(i)].events & (EPOLLHUP | EPOLLERR)) != 0);
    }
  }
  if (now < next_due_) return;
  next_due_ = TimePoint::max();
  LookAtAll(now);
}

int SessionLoop::Wait(Events* events) {
  const auto wait = [&](int timeout_ms) {
    const int happened =
        epoll_wait(epoll_.get(), events->data(), static_cast<int>(events->size()), timeout_ms);
    LARDER_CHECK(happened >= 0 || errno == EINTR);
    return std::max(happened, 0);
  };
  int ready = 0;
  if (SpinWhileIdle(spin_until_, [&] { return (ready = wait(0)) > 0; })) return ready;
  if (next_due_ == TimePoint::max()) return wait(-1);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_due_ - SteadyNow());
  return wait(static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000)));
}

// A socket that was added is looked at as well, because its session may have been ended before the
// loop had the socket.
void SessionLoop::TakeWoken() {
  for (Woken& woken : woken_.Take()) {
    if (woken.added != nullptr) Serve(std::move(woken.added));
    LookAt(woken.id, SteadyNow());
  }
}

void SessionLoop::Serve(std::unique_ptr<SessionSocket> socket) {
  const uint64_t id = socket->id();
  if (AddToEpoll(epoll_.get(), socket->socket(), /*events=*/0, id)) {
    served_.try_emplace(id, Served{.socket = std::move(socket), .events = 0});
    return;
  }
  socket->Finish(absl::ResourceExhaustedError(
      "the kernel cannot watch another session socket: attach again later"));
  (void)socket->OnEvent(SteadyNow());
}

void SessionLoop::LookAt(uint64_t id, TimePoint now, bool hung_up) {
  const auto found = served_.find(id);
  if (found == served_.end()) return;
  const SessionSocket::Next next = found->second.socket->OnEvent(now, hung_up);
  if (next.over) {
    Erase(id);
    return;
  }
  if (next.heard) spin_until_ = SteadyNow() + kSpin;
  next_due_ = std::min(next_due_, next.due);
  Watch(found->second, next, hung_up);
  if (next.lingers) Linger(id);
}

void SessionLoop::Linger(uint64_t id) {
  lingering_.insert(id);
  if (lingering_.size() > kLingeringMax) Erase(*lingering_.begin());
}

void SessionLoop::Erase(uint64_t id) {
  const auto found = served_.find(id);
  // Another thread may close the descriptor later; until then epoll would keep reporting it.
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.socket->socket(), nullptr);
  served_.erase(found);
  lingering_.erase(id);
}

void SessionLoop::Watch(Served& served, const SessionSocket::Next& next, bool hung_up) {
  const uint32_t events = (next.read ? EPOLLIN : 0U) | (next.write ? EPOLLOUT : 0U);
  // epoll reports a hang-up even if it is asked for no event, and would do so again at once.  So a
  // socket whose peer has hung up, but that waits for something else (a worker, capacity), is
  // removed from the epoll.  It is looked at again when it is woken or due.
  const bool watched = events != 0 || (served.watched && !hung_up);
  if (events == served.events && watched == served.watched) return;
  const int what = !watched ? EPOLL_CTL_DEL : served.watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  served.events = events;
  served.watched = watched;
  epoll_event event{};
  event.events = events;
  event.data.u64 = served.socket->id();
  LARDER_CHECK(epoll_ctl(epoll_.get(), what, served.socket->socket(), &event) == 0);
}

void SessionLoop::LookAtAll(TimePoint now) {
  std::vector<uint64_t> ids;
  ids.reserve(served_.size());
  for (const auto& [id, served] : served_) ids.push_back(id);
  for (const uint64_t id : ids) LookAt(id, now);
}

}  // namespace larder
