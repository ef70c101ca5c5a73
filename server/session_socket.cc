#include "server/session_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace larder {
namespace {

constexpr std::chrono::seconds kRetryAfter{1};  // when there are too many sessions
// What a queue that is empty may keep.
constexpr size_t kQueueKeptBytes = 64 << 10;

SessionEnd EndOf(const absl::Status& why, uint32_t retry_after_ms) {
  if (!absl::IsResourceExhausted(why)) return {.status = why};
  return {.status = absl::ResourceExhaustedError(
              absl::StrCat(why.message(), ": retry after ", retry_after_ms, " ms")),
          .retry_after_ms = retry_after_ms};
}

}  // namespace

SessionSocket::~SessionSocket() {
  if (session_) End(absl::UnavailableError("larderd is stopping"), TimePoint());
}

void SessionSocket::Refuse(const absl::Status& why) {
  MutexLock lock(mu_);
  SessionCodec::AppendEnd(EndOf(why, RetryAfterMs(kRetryAfter)), &queue_);
  Flush();
}

// ---- SessionSink

void SessionSocket::Send(wire::Down message) {
  MutexLock lock(mu_);
  if (end_ || deaf_) return;
  writer_.Append(message, &queue_);
  Flush();
  if (!queue_.empty() || deaf_) Wake();
}

void SessionSocket::Finish(absl::Status status) {
  MutexLock lock(mu_);
  if (!end_) end_ = std::move(status);
  Wake();
}

void SessionSocket::Abort() {
  MutexLock lock(mu_);
  DropQueue();
  if (!end_) end_ = absl::CancelledError("the process of this session is dead");
  Wake();
}

void SessionSocket::Wake() {
  if (!std::exchange(woken_, true)) waker_.Wake(id_);
}

// ---- the loop

SessionSocket::Next SessionSocket::OnEvent(TimePoint now) {
  Next next;
  {
    MutexLock lock(mu_);
    woken_ = false;
    Flush();
  }
  std::optional<absl::Status> end = WantedEnd();
  if (session_ && !end) {
    LookAtInput(now, &next);
    end = WantedEnd();  // it may have asked for it, or have met its end
  }
  if (session_ && end) End(*end, now);
  MutexLock lock(mu_);
  next.write = !queue_.empty();
  next.over = !session_ && (!next.write || now >= due_);
  next.read = session_ && queue_.size() - written_ <= kQueuedMax;
  next.due = due_;
  return next;
}

void SessionSocket::LookAtInput(TimePoint now, Next* next) {
  if (Full()) {
    due_ = TimePoint::max();  // it is we who do not read
    return;
  }
  absl::Status status = HandleFrames(next);  // those left from when answers were too many
  if (status.ok() && !Full() && !eof_) {
    Receive();
    status = HandleFrames(next);
  }
  const bool full = Full();
  if (status.ok() && !full && !eof_) status = CheckAwaited(now);
  if (status.ok() && (full || !eof_)) return;
  if (!status.ok()) ++context_.deps.counters.invalid_messages;
  // Half-closed or broken: which of them, the session knows by whether it was told `bye`.
  End(status, now);
}

void SessionSocket::Receive() {
  const std::span<std::byte> room = reader_.Room();
  const ssize_t received = recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (received > 0) reader_.Take(static_cast<size_t>(received));
  eof_ = received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
}

absl::Status SessionSocket::HandleFrames(Next* next) {
  while (!Full()) {
    absl::StatusOr<std::optional<SessionFrame>> frame = reader_.Next();
    if (!frame.ok()) return frame.status();
    if (!frame->has_value()) break;
    next->heard = true;
    due_ = TimePoint::max();
    if (absl::Status status = Handle(**frame); !status.ok()) return status;
    ticket_.Reset();
    if (WantedEnd()) break;
  }
  return absl::OkStatus();
}

absl::Status SessionSocket::Handle(const SessionFrame& frame) {
  if (frame.type != SessionFrameType::kMessage) {
    return absl::InvalidArgumentError("a session frame that only the daemon sends");
  }
  if (absl::Status status = parser_.Parse(frame.body, &up_); !status.ok()) return status;
  return session_->OnUp(up_);
}

absl::Status SessionSocket::CheckAwaited(TimePoint now) {
  if (!reader_.partial()) return absl::OkStatus();
  if (due_ == TimePoint::max()) due_ = now + kMessageDeadline;
  if (now >= due_) {
    return absl::DeadlineExceededError("a message that had begun was not whole in time");
  }
  const size_t awaited = reader_.awaited_bytes();
  if (awaited <= kFreeBodyBytes || ticket_) return absl::OkStatus();
  // The frame, and what it says.
  Admission::Answer answer = context_.admission.EnterBytes(ByteCount(2 * awaited));
  if (answer.admitted()) {
    ticket_ = std::move(answer.ticket);
    return absl::OkStatus();
  }
  ++context_.deps.counters.calls_overloaded;
  retry_after_ms_ = RetryAfterMs(answer.retry_after);
  return absl::ResourceExhaustedError(absl::StrCat("no room for a message of ", awaited, " bytes"));
}

bool SessionSocket::Full() {
  MutexLock lock(mu_);
  return queue_.size() - written_ > kQueuedMax;
}

std::optional<absl::Status> SessionSocket::WantedEnd() {
  MutexLock lock(mu_);
  return end_;
}

void SessionSocket::End(const absl::Status& why, TimePoint now) {
  const std::shared_ptr<AttachedSession> session = std::exchange(session_, nullptr);
  session->OnClosed();
  context_.sessions.Remove(session->id());
  ticket_.Reset();
  due_ = now + kLinger;
  MutexLock lock(mu_);
  if (deaf_) return;
  SessionCodec::AppendEnd(EndOf(why, retry_after_ms_), &queue_);
  Flush();
}

// ---- writing

void SessionSocket::Flush() {
  while (!deaf_ && written_ < queue_.size()) {
    const ssize_t sent = send(socket_.get(), queue_.data() + written_, queue_.size() - written_,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) return DropQueue();
    written_ += static_cast<size_t>(sent);
  }
  written_ = 0;
  queue_.clear();
  if (queue_.capacity() > kQueueKeptBytes) queue_.shrink_to_fit();
}

void SessionSocket::DropQueue() {
  deaf_ = true;
  written_ = 0;
  queue_.clear();
}

}  // namespace larder
