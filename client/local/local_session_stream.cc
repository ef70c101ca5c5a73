#include "client/local/local_session_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/spin_wait.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

absl::Status Closed() {
  return absl::UnavailableError("the session's stream is closed: Attach again");
}

// Returns the timeout for poll in milliseconds: rounded up, at most 60,000, and -1 (none) for
// TimePoint::max().
int MsUntil(TimePoint until) {
  if (until == TimePoint::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - SteadyNow());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

}  // namespace

LocalSessionStream::LocalSessionStream(FileDescriptor socket, WakeUp wake,
                                       SessionInbox::Handlers handlers)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      inbox_(std::move(handlers)),
      reader_(wire::kMessageBytesMax) {}

absl::StatusOr<std::unique_ptr<SessionStream>> LocalSessionStream::Open(
    FileDescriptor socket, wire::Hello hello, SessionInbox::Handlers handlers,
    std::chrono::milliseconds deadline) {
  const TimePoint until = SteadyNow() + deadline;
  LARDER_ASSIGN_OR_RETURN(WakeUp wake, WakeUp::Open("cannot make an eventfd for the session"));
  auto opened = absl::WrapUnique(
      new LocalSessionStream(std::move(socket), std::move(wake), std::move(handlers)));
  wire::Up up;
  up.hello = std::move(hello);
  (void)opened->Send(std::move(up));  // if it failed, WaitAttached returns the reason
  LARDER_RETURN_IF_ERROR(opened->inbox_.WaitAttached(*opened, until));
  return opened;
}

LocalSessionStream::~LocalSessionStream() {
  if (!fork_guard_.left()) Cancel();
}

// ---- writing

absl::Status LocalSessionStream::Send(wire::Up up) {
  MutexLock lock(write_mu_);
  if (closing_ || broken_) return Closed();
  if (queue_.empty()) write_due_ = SteadyNow() + kWriteDeadline;
  writer_.Append(up, queue_.tail());
  Flush();
  if (queue_.empty()) return absl::OkStatus();
  Nudge();  // a thread that sleeps in Pump only waits for arrivals
  if (queue_.waiting() <= kQueuedBytesMax) return absl::OkStatus();
  stuck_ = true;
  broken_ = true;
  Cancel();
  return Closed();
}

void LocalSessionStream::Flush() {
  if (broken_) return;
  const size_t before = queue_.waiting();
  const SocketQueue::Flushed flushed = queue_.Flush(socket_.get());
  if (flushed == SocketQueue::Flushed::kSome) {
    if (queue_.waiting() < before) {
      write_due_ = SteadyNow() + kWriteDeadline;
    }
  } else if (flushed == SocketQueue::Flushed::kBroken) {
    broken_ = true;
    Cancel();  // the reader gets the reason, as far as the daemon gave one
  } else if (closing_) {
    broken_ = true;  // nothing is written after this
    shutdown(socket_.get(), SHUT_WR);
  }
}

std::optional<TimePoint> LocalSessionStream::FlushQueue() {
  MutexLock lock(write_mu_);
  if (queue_.empty()) return std::nullopt;
  Flush();
  if (queue_.empty()) return std::nullopt;
  return write_due_;
}

// ---- reading

void LocalSessionStream::Pump(uint64_t seen, TimePoint spin_until, TimePoint deadline) {
  MutexLock lock(pump_mu_);
  IdleSpin spin(spin_until);
  while (inbox_.arrivals() == seen && !inbox_.ended() && (ending_ || !woken_.load())) {
    if (Read()) continue;
    const std::optional<TimePoint> write_due = FlushQueue();
    const TimePoint now = SteadyNow();
    if (write_due && now >= *write_due && !stuck_.exchange(true)) Cancel();
    if (now >= deadline) return;
    if (spin.On(now)) {
      std::this_thread::yield();  // the daemon's thread may be waiting for this core
      continue;
    }
    const bool writing = write_due && !stuck_.load();
    Sleep(writing, writing ? std::min(deadline, *write_due) : deadline);
  }
}

bool LocalSessionStream::Read() {
  absl::StatusOr<std::optional<SessionFrame>> frame = reader_.Next();
  if (!frame.ok()) {
    End(Nonsense(frame.status()));
    return true;
  }
  if (!frame->has_value()) return Receive();
  Handle(**frame);
  return true;
}

bool LocalSessionStream::Receive() {
  const std::span<std::byte> room = reader_.Room();
  const ssize_t received = recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (received > 0) {
    reader_.Take(static_cast<size_t>(received));
    return true;
  }
  if (received < 0 && errno == EINTR) return true;
  if (received < 0 && errno == EAGAIN) return false;
  End(stuck_.load()
          ? absl::DeadlineExceededError(
                "the daemon does not accept messages: it hangs or is overloaded")
          : absl::UnavailableError("the daemon closed the session's socket: it ended or crashed"));
  return true;
}

void LocalSessionStream::Handle(const SessionFrame& frame) {
  if (frame.type == SessionFrameType::kEnd) {
    const absl::StatusOr<SessionEnd> end = SessionCodec::ParseEnd(frame.body);
    return End(end.ok() ? end->status : Nonsense(end.status()));
  }
  down_ = {};
  if (absl::Status status = parser_.Parse(frame.body, &down_); !status.ok()) {
    return End(Nonsense(status));
  }
  inbox_.HandOver(std::move(down_));
}

void LocalSessionStream::End(const absl::Status& why) {
  {
    MutexLock lock(write_mu_);
    broken_ = true;
    queue_.Clear();
  }
  Cancel();
  inbox_.End(why);
}

void LocalSessionStream::Sleep(bool writing, TimePoint until) {
  const auto events = static_cast<int16_t>(writing ? POLLIN | POLLOUT : POLLIN);
  pollfd waiting[] = {{.fd = socket_.get(), .events = events, .revents = 0},
                      {.fd = ending_ ? -1 : wake_.fd(), .events = POLLIN, .revents = 0}};
  (void)poll(waiting, 2, MsUntil(until));  // the caller checks again in any case
  if ((waiting[1].revents & POLLIN) != 0) wake_.Clear();
}

// ---- ending

void LocalSessionStream::Cancel() { shutdown(socket_.get(), SHUT_RDWR); }

void LocalSessionStream::Nudge() { wake_.Wake(); }

void LocalSessionStream::Wake() {
  woken_ = true;
  Nudge();
}

bool LocalSessionStream::Close(std::chrono::milliseconds deadline) {
  const TimePoint until = SteadyNow() + deadline;
  {
    MutexLock lock(write_mu_);
    closing_ = true;
    Flush();
  }
  {
    MutexLock lock(pump_mu_);
    ending_ = true;
  }
  if (!inbox_.WaitEnd(*this, until)) {
    Cancel();
    (void)inbox_.WaitEnd(*this, TimePoint::max());  // a socket that was shut down ends by itself
  }
  return inbox_.ended_in_peace();
}

}  // namespace larder
