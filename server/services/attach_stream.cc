#include "server/services/attach_stream.h"

#include <algorithm>
#include <span>
#include <utility>

#include <grpcpp/impl/codegen/proto_utils.h>

#include "absl/strings/str_cat.h"
#include "proto/convert/convert.h"
#include "server/services/caller.h"
#include "server/services/rpc_status.h"
#include "storage/check.h"

namespace larder {

void AttachStream::Start(std::optional<AttachedProcess> process, const ShareHolder& holder,
                         std::string peer) {
  account_ = deps_.shares.Of(holder);
  absl::StatusOr<std::shared_ptr<AttachedSession>> session =
      sessions_.Add(deps_, std::move(process), holder, std::move(peer), *this);
  if (!session.ok()) {
    const absl::Status& why = session.status();
    Refuse(absl::IsResourceExhausted(why)
               ? Overloaded(context_, std::chrono::seconds(1), std::string(why.message()))
               : why);
    return;
  }
  session_ = *std::move(session);
  StartRead(&up_);
}

void AttachStream::Refuse(const absl::Status& status) { Finish(status); }

void AttachStream::OnReadDone(bool ok) {
  if (!ok) {
    // The client has half-closed the stream, or the stream broke.  The session is ended before the
    // stream, so that it has ended when a client sees the end of the stream.
    EndSession();
    MutexLock lock(mu_);
    if (!finish_) finish_ = absl::OkStatus();
    FinishIfDone();
    return;
  }
  {
    MutexLock lock(mu_);
    // If the stream has finished, this object may be deleted at any time, also while the message
    // would be handled.
    if (finished_) return;
    handling_ = true;
  }
  AwaitRoom();
}

void AttachStream::AwaitRoom() {
  std::optional<absl::StatusOr<Shares::Ticket>> room = TakeRoom();
  if (!room) {
    MutexLock lock(mu_);
    if (!finish_) return RetryLater([this] { AwaitRoom(); });
    room = *finish_;
  }
  if (!room->ok()) return EndRead(room->status());
  room_ = **std::move(room);
  if (up_.Length() <= kSmallBytes) return HandleRead();
  HandToWorker();
}

void AttachStream::HandToWorker() {
  if (deps_.workers.Submit(account_.holder(), up_.Length(), [this] { HandleRead(); })) return;
  MutexLock lock(mu_);
  RetryLater([this] { HandToWorker(); });
}

void AttachStream::RetryLater(std::function<void()> again) {
  retry_.emplace();
  retry_->Set(std::chrono::system_clock::now() + kRetry,
              [again = std::move(again)](bool) { again(); });
}

void AttachStream::HandleRead() {
  absl::Status status = Parse();
  if (status.ok()) status = session_->OnUp(message_);
  if (!status.ok()) ++deps_.counters.invalid_messages;
  parser_->Release(&message_);
  EndRead(std::move(status));
}

void AttachStream::EndRead(absl::Status status) {
  up_.Clear();
  room_.Reset();
  if (!status.ok()) {
    EndSession();
    Finish(std::move(status));
  }
  grpc::Status end;
  {
    MutexLock lock(mu_);
    handling_ = false;
    if (!TakeEnd()) {
      read_paused_ = queued_ > kQueuedMax;
      if (!read_paused_ && !finish_) StartRead(&up_);
      return;
    }
    end = ToRpcStatus(*finish_);
  }
  // Without the lock: this object, and the lock with it, may be deleted before Finish returns.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>::Finish(end);
}

absl::Status AttachStream::Parse() {
  if (!parser_) parser_.emplace();
  grpc::Slice bytes;
  if (!up_.TrySingleSlice(&bytes).ok() && !up_.DumpToSingleSlice(&bytes).ok())
    return absl::InvalidArgumentError("the bytes of a message cannot be read");
  return parser_->Parse(std::as_bytes(std::span(bytes.begin(), bytes.size())), &message_);
}

std::optional<absl::StatusOr<Shares::Ticket>> AttachStream::TakeRoom() {
  constexpr size_t kCopies = 2;  // the bytes and the parsed message
  const size_t bytes = up_.Length();
  if (bytes <= kSmallBytes) return Shares::Ticket();
  Shares::Answer answer = account_.Take(ShareKind::kMessageBytes, kCopies * bytes);
  if (answer.admitted()) {
    waits_from_.reset();
    waits_.Reset();
    return std::move(answer.ticket);
  }
  const TimePoint now = deps_.clock.Now();
  if (!waits_from_) {
    ++deps_.counters.calls_overloaded;
    waits_from_ = now;
    Shares::Answer place = account_.Take(ShareKind::kWaitingBytes, bytes);
    if (!place.admitted()) return absl::ResourceExhaustedError(place.why);
    waits_ = std::move(place.ticket);
  }
  // Waiting messages must not block one another forever, so after kWaitMax a message is refused if
  // its account holds an average share or more (HasItsPart).
  bool over = false;
  if (now >= std::max(*waits_from_ + kWaitMax, asked_ + kAskAgain)) {
    asked_ = now;  // not at each try, because HasItsPart looks at all accounts
    over = account_.HasItsPart(ShareKind::kMessageBytes);
  }
  if (answer.retry_after != Duration::zero() && !over) return std::nullopt;
  return absl::ResourceExhaustedError(absl::StrCat("no capacity for a message: ", answer.why));
}

void AttachStream::Send(wire::Down message) {
  MutexLock lock(mu_);
  if (finished_ || finish_) return;
  queued_ += WeightOf(message);
  queue_.push_back(std::move(message));
  if (!writing_) WriteNext();
  ChargeQueue();
}

void AttachStream::WriteNext() {
  down_.Clear();
  wire::Encode(queue_.front(), &down_);
  written_weight_ = WeightOf(queue_.front());
  kept_ += written_weight_;
  queued_ -= written_weight_;
  queue_.pop_front();
  writing_ = true;
  written_.Clear();
  bool own = false;
  // Serializing cannot fail, because the daemon made the message.
  LARDER_CHECK(grpc::SerializationTraits<v1::Down>::Serialize(down_, &written_, &own).ok());
  StartWrite(&written_);
}

void AttachStream::OnWriteDone(bool ok) {
  MutexLock lock(mu_);
  writing_ = false;
  written_weight_ = 0;
  if (kept_ > SessionCodec::kKeptBytes) {
    down_ = v1::Down();
    kept_ = 0;
  }
  if (!ok) {
    // The answer is lost, and without it the stream is of no use to its client.
    DropQueue();
    if (!finish_) finish_ = absl::UnavailableError("an answer could not be sent");
  }
  ChargeQueue();
  if (!queue_.empty()) {
    WriteNext();
  } else {
    FinishIfDone();
  }
  if (read_paused_ && queued_ <= kQueuedMax / 2 && !finish_) {
    read_paused_ = false;
    StartRead(&up_);
  }
}

void AttachStream::ChargeQueue() {
  absl::Status status = ChargeAnswers(account_, queued_ + written_weight_, &answers_);
  if (status.ok()) return;
  DropQueue();
  if (!finish_) finish_ = std::move(status);
}

void AttachStream::Finish(absl::Status status) {
  MutexLock lock(mu_);
  if (finish_) return;
  finish_ = std::move(status);
  FinishIfDone();
}

void AttachStream::DropQueue() {
  queue_.clear();
  queued_ = 0;
}

bool AttachStream::TakeEnd() {
  if (!finish_ || handling_ || writing_ || !queue_.empty()) return false;
  return !std::exchange(finished_, true);
}

void AttachStream::FinishIfDone() {
  if (TakeEnd())
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>::Finish(ToRpcStatus(*finish_));
}

void AttachStream::OnCancel() {
  MutexLock lock(mu_);
  DropQueue();
  if (!finish_) finish_ = absl::CancelledError("the client has ended the call");
  FinishIfDone();
}

void AttachStream::OnDone() {
  EndSession();
  delete this;
}

void AttachStream::EndSession() {
  if (!session_) return;
  session_->OnClosed();
  sessions_.Remove(session_->id());
}

}  // namespace larder
