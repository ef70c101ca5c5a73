#include "server/sockets/session_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "server/connections/passed_rights.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr std::chrono::seconds kRetryAfter{1};  // if there are too many sessions
// A session's turn ends, so that the loop serves the others, when so many frames, or so many bytes
// of frames, have been handled.
constexpr size_t kTurnFrames = 16, kTurnBytes = SessionSocket::kSmallBodyBytes;

}  // namespace

SessionSocket::SessionSocket(const Context& context, FileDescriptor socket, uint64_t id,
                             Waker& waker)
    : context_(context),
      socket_(std::move(socket)),
      kernel_refuses_(RefuseRights(socket_.get())),
      id_(id),
      waker_(waker),
      input_(std::in_place) {}

SessionSocket::~SessionSocket() {
  if (session_) End(absl::UnavailableError("larderd is stopping"), TimePoint());
  CloseSocket(std::move(socket_), kernel_refuses_);
}

void SessionSocket::Refuse(const absl::Status& why) {
  SessionEnd end{.status = why};
  if (absl::IsResourceExhausted(why)) {
    end.retry_after_ms = RetryAfterMs(kRetryAfter);
    end.status = absl::ResourceExhaustedError(
        absl::StrCat(why.message(), ": retry after ", end.retry_after_ms, " ms"));
  }
  MutexLock lock(mu_);
  SessionCodec::AppendEnd(end, queue_.tail());
  Flush();
}

// ---- SessionSink

void SessionSocket::Send(wire::Down message) {
  MutexLock lock(mu_);
  if (end_ || deaf_) return;
  const size_t before = queue_.tail()->size();
  writer_.Append(message, queue_.tail());
  if (queue_.tail()->size() - before > kSessionFrameHeaderBytes + wire::kMessageBytesMax) {
    queue_.tail()->resize(before);
    end_ = absl::ResourceExhaustedError(absl::StrCat(
        "an answer is longer than ", wire::kMessageBytesMax, " bytes: ask for fewer keys at once"));
  }
  Flush();
  ChargeQueue();
  if (!queue_.empty() || deaf_ || end_) Wake();
}

void SessionSocket::Finish(absl::Status status) {
  MutexLock lock(mu_);
  if (!end_) end_ = std::move(status);
  Wake();
}

void SessionSocket::Abort() {
  MutexLock lock(mu_);
  deaf_ = true;
  queue_.Clear();
  if (!end_) end_ = absl::CancelledError("the process of this session is dead");
  Wake();
}

void SessionSocket::Wake() {
  if (!looking_ && !std::exchange(woken_, true)) waker_.Wake(id_);
}

// ---- the loop

SessionSocket::Next SessionSocket::OnEvent(TimePoint now, bool hung_up) {
  Next next;
  hung_up_ = hung_up_ || hung_up;
  {
    MutexLock lock(mu_);
    looking_ = true;
    woken_ = false;
    Flush();
    if (answers_) ChargeQueue();
  }
  if (session_) LookAtSession(now, &next);
  MutexLock lock(mu_);
  looking_ = false;
  next.write = !queue_.empty();
  next.due = due_;
  if (!session_) {
    next.over = !next.write || now >= due_;
    next.lingers = !next.over;
    return next;
  }
  const bool full = queue_.waiting() > kQueuedMax;
  next.read = !input_->working && !input_->stopped && !input_->more && !input_->eof && !full;
  // Another thread may have requested an end meanwhile, or its flush may have freed capacity for
  // answers; no later event would report that.
  const bool freed = input_->stopped && due_ == TimePoint::max() && !full;
  if (input_->working ? worked_.has_value() : (end_ || deaf_ || freed || input_->more)) Wake();
  return next;
}

void SessionSocket::LookAtSession(TimePoint now, Next* next) {
  if (input_->working) {
    const std::optional<absl::Status> worked = TakeWorked();
    if (!worked) return;
    next->heard = true;
    input_->working = false;
    input_->frame.reset();
    input_->reader.Trim();
    input_->charged.Reset();
    input_->refused = false;
    input_->waits_from.reset();
    if (!worked->ok()) return Fail(*worked, now);
  }
  if (const auto end = WantedEnd()) return End(*end, now);
  if (absl::Status status = LookAtInput(now, next); !status.ok()) return Fail(status, now);
  if (input_->working) return;
  if (const auto end = WantedEnd()) return End(*end, now);
  // The client sends nothing more.  If it has sent no `bye`, the session treats it as lost.
  if (input_->eof && !input_->stopped) return End(absl::OkStatus(), now);
  // The client is gone, so its message must not wait for capacity that other processes hold.
  if (hung_up_ && input_->waits_from) End(absl::OkStatus(), now);
}

absl::Status SessionSocket::LookAtInput(TimePoint now, Next* next) {
  due_ = TimePoint::max();
  input_->stopped = false;
  // First handles frames that were received before but could not be handled then.
  LARDER_RETURN_IF_ERROR(HandleFrames(now, next));
  if (input_->working || input_->stopped || input_->more || input_->eof) return absl::OkStatus();
  LARDER_RETURN_IF_ERROR(MakeRoom(now));
  if (input_->stopped) return absl::OkStatus();
  const bool received = Receive(now);
  if (input_->carried) {
    return absl::InvalidArgumentError("the client sent file descriptors on its session socket");
  }
  LARDER_RETURN_IF_ERROR(HandleFrames(now, next));
  if (input_->working || input_->stopped || input_->more || input_->eof) return absl::OkStatus();
  return CheckBegun(now, received);
}

absl::Status SessionSocket::MakeRoom(TimePoint now) {
  const size_t awaited = input_->reader.awaited_bytes();
  if (awaited <= kSmallBodyBytes) return absl::OkStatus();
  // `grown` is the most that the reader's buffer may have after the next bytes.  `wanted` has a
  // factor of 2 for the decoded form.
  const size_t grown = 2 * input_->reader.buffer_bytes() + SessionFrameReader::kRoomBytes;
  const size_t wanted = 2 * std::min(awaited, grown);
  const uint64_t charged = input_->charged.amount();
  if (wanted <= charged) return absl::OkStatus();
  Shares::Answer answer = account_.Take(ShareKind::kMessageBytes, wanted - charged);
  if (answer.admitted()) {
    input_->charged.Merge(std::move(answer.ticket));
    if (const auto waited = std::exchange(input_->waits_from, std::nullopt)) {
      input_->begun += now - *waited;  // the client is not late: the daemon did not read
      input_->moved = now;
    }
    return absl::OkStatus();
  }
  if (!std::exchange(input_->refused, true)) ++context_.deps.counters.calls_overloaded;
  // Messages that wait for one another's capacity must not wait forever.  So a message is refused
  // after kMessageMax if its process holds at least its part of the capacity (HasItsPart).  The
  // message of a process that holds less may keep waiting.
  if (!input_->waits_from) input_->waits_from = now;
  bool over = false;
  if (now >= std::max(*input_->waits_from + kMessageMax, input_->asked + kAskAgain)) {
    input_->asked = now;  // not at each try, because HasItsPart looks at all accounts
    over = account_.HasItsPart(ShareKind::kMessageBytes);
  }
  if (answer.retry_after == Duration::zero() || over) {
    return absl::ResourceExhaustedError(absl::StrCat("no capacity for a message: ", answer.why));
  }
  StopFor(now + kRetry);
  return absl::OkStatus();
}

bool SessionSocket::Receive(TimePoint now) {
  const bool was_partial = input_->reader.partial();
  const std::span<std::byte> room = input_->reader.Room();
  const ssize_t received = ReceiveStream(socket_.get(), room, kernel_refuses_);
  if (received <= 0) {
    input_->carried = received < 0 && errno == EPERM;
    input_->eof = received == 0 || (errno != EAGAIN && errno != EINTR);
    return false;
  }
  input_->reader.Take(static_cast<size_t>(received));
  input_->moved = now;
  if (!was_partial) input_->begun = now;
  return true;
}

absl::Status SessionSocket::HandleFrames(TimePoint now, Next* next) {
  input_->more = false;
  size_t bytes = 0;
  for (size_t handled = 0;; ++handled) {
    if (Full()) {
      StopFor(TimePoint::max());  // until the client has read
      return absl::OkStatus();
    }
    if (!input_->frame) {
      LARDER_ASSIGN_OR_RETURN(std::optional<SessionFrame> frame, input_->reader.Next());
      if (!frame.has_value()) return absl::OkStatus();
      input_->frame = *frame;
      input_->begun = now;  // of the message that follows
    }
    if (input_->frame->body.size() > kSmallBodyBytes) {
      if (!HandToWorker(*input_->frame)) StopFor(now + kRetry);
      return absl::OkStatus();
    }
    if (handled == kTurnFrames || bytes >= kTurnBytes) {
      input_->more = true;
      return absl::OkStatus();
    }
    next->heard = true;
    bytes += input_->frame->body.size();
    const SessionFrame frame = *std::exchange(input_->frame, std::nullopt);
    absl::Status status = Handle(frame, input_->parser, input_->up);
    input_->parser.Release(&input_->up);
    if (!status.ok()) {
      return status;
    }
    if (WantedEnd()) return absl::OkStatus();
  }
}

absl::Status SessionSocket::Handle(const SessionFrame& frame, SessionCodec& parser, wire::Up& up) {
  if (frame.type != SessionFrameType::kMessage) {
    return absl::InvalidArgumentError("the client sent a session frame that only the daemon sends");
  }
  LARDER_RETURN_IF_ERROR(parser.Parse(frame.body, &up));
  return session_->OnUp(up);
}

// The worker uses a codec of its own, whose memory is freed when the message is handled.
bool SessionSocket::HandToWorker(const SessionFrame& frame) {
  const auto handle = [this, frame] {
    absl::Status status;
    {
      SessionCodec parser;
      wire::Up up;
      status = Handle(frame, parser, up);
    }
    MutexLock lock(mu_);
    worked_ = std::move(status);
    Wake();
  };
  input_->working = context_.deps.workers.Submit(account_.holder(), frame.body.size(), handle);
  return input_->working;
}

void SessionSocket::StopFor(TimePoint due) {
  input_->stopped = true;
  due_ = due;
}

absl::Status SessionSocket::CheckBegun(TimePoint now, bool received) {
  if (!input_->reader.partial()) return absl::OkStatus();
  due_ = std::min<TimePoint>(input_->begun + kMessageMax, input_->moved + kPauseMax);
  // A message is late only if there was nothing to read: the loop itself may be late.
  if (!received && now >= due_) {
    return absl::DeadlineExceededError("a message was not completed in time after its first byte");
  }
  return absl::OkStatus();
}

bool SessionSocket::Full() {
  MutexLock lock(mu_);
  return queue_.waiting() > kQueuedMax;
}

std::optional<absl::Status> SessionSocket::TakeWorked() {
  MutexLock lock(mu_);
  return std::exchange(worked_, std::nullopt);
}

std::optional<absl::Status> SessionSocket::WantedEnd() {
  MutexLock lock(mu_);
  if (!end_ && deaf_) end_ = absl::UnavailableError("an answer could not be sent");
  return end_;
}

void SessionSocket::Fail(const absl::Status& why, TimePoint now) {
  if (!absl::IsResourceExhausted(why) && !absl::IsDeadlineExceeded(why)) {
    ++context_.deps.counters.invalid_messages;
  }
  End(why, now);
}

void SessionSocket::End(const absl::Status& why, TimePoint now) {
  const std::shared_ptr<AttachedSession> session = std::exchange(session_, nullptr);
  session->OnClosed();
  context_.sessions.Remove(session->id());
  input_.reset();
  due_ = now + kLinger;
  MutexLock lock(mu_);
  if (deaf_) return;
  SessionCodec::AppendEnd({.status = why}, queue_.tail());
  Flush();
}

void SessionSocket::ChargeQueue() {
  absl::Status status = ChargeAnswers(account_, queue_.waiting(), &answers_);
  if (!status.ok() && !end_) end_ = std::move(status);
}

void SessionSocket::Flush() {
  if (deaf_ || queue_.Flush(socket_.get()) != SocketQueue::Flushed::kBroken) return;
  deaf_ = true;
}

}  // namespace larder
