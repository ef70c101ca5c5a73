#include "server/services/attach_stream.h"

#include <utility>

#include "client/wire/convert.h"
#include "server/services/caller.h"
#include "server/services/rpc_status.h"

namespace larder {
namespace {

// About the bytes that a message waits with.
size_t Weight(const wire::Down& message) {
  size_t bytes = sizeof(message);
  for (const wire::Grant& grant : message.grants) {
    bytes += grant.blocks.size() * sizeof(wire::BlockGrant);
    for (const wire::BlockGrant& block : grant.blocks) {
      if (block.table) bytes += block.table->segments.size() * sizeof(Segment);
    }
  }
  for (const wire::Reserved& r : message.reserved) bytes += r.extents.size() * sizeof(r.extents[0]);
  for (const wire::Published& p : message.published) bytes += p.status.size();
  for (const wire::Revocation& r : message.revocations) {
    bytes += (r.leases.size() + r.reservations.size()) * sizeof(uint64_t);
  }
  for (const wire::Directive& d : message.directives)
    bytes += d.digests.size() * sizeof(Digest) + d.owner.size();
  return bytes;
}

}  // namespace

void AttachStream::Start(std::optional<AttachedProcess> process, std::string peer) {
  absl::StatusOr<std::shared_ptr<AttachedSession>> session =
      sessions_.Add(deps_, std::move(process), std::move(peer), *this);
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
    // Half-closed or broken: which of them, the session knows by whether it was told `bye`.  It
    // ends before its stream does, so that a client whose stream has ended finds nothing of it any
    // more.
    EndSession();
    MutexLock lock(mu_);
    if (!finish_) finish_ = absl::OkStatus();
    if (!writing_ && queue_.empty()) FinishNow();
    return;
  }
  absl::Status status = wire::Decode(up_, &message_);
  if (status.ok()) status = session_->OnUp(message_);
  if (!status.ok()) {
    ++deps_.counters.invalid_messages;
    EndSession();
    Finish(std::move(status));
    return;
  }
  MutexLock lock(mu_);
  if (queued_ > kQueuedMax) {
    read_paused_ = true;
    return;
  }
  StartRead(&up_);
}

void AttachStream::Send(wire::Down message) {
  MutexLock lock(mu_);
  if (finished_ || finish_) return;
  queued_ += Weight(message);
  queue_.push_back(std::move(message));
  if (!writing_) WriteNext();
}

void AttachStream::WriteNext() {
  down_.Clear();
  wire::Encode(queue_.front(), &down_);
  queued_ -= Weight(queue_.front());
  queue_.pop_front();
  writing_ = true;
  StartWrite(&down_);
}

void AttachStream::OnWriteDone(bool ok) {
  MutexLock lock(mu_);
  writing_ = false;
  if (!ok) {
    // Answers are lost: a stream without them is of no use to its client.
    DropQueue();
    if (!finish_) finish_ = absl::UnavailableError("an answer could not be sent");
  }
  if (!queue_.empty()) {
    WriteNext();
  } else if (finish_) {
    FinishNow();
  }
  if (read_paused_ && queued_ <= kQueuedMax / 2 && !finish_) {
    read_paused_ = false;
    StartRead(&up_);
  }
}

void AttachStream::Finish(absl::Status status) {
  MutexLock lock(mu_);
  if (finish_) return;
  finish_ = std::move(status);
  if (!writing_ && queue_.empty()) FinishNow();
}

void AttachStream::DropQueue() {
  queue_.clear();
  queued_ = 0;
}

void AttachStream::FinishNow() {
  if (std::exchange(finished_, true)) return;
  grpc::ServerBidiReactor<v1::Up, v1::Down>::Finish(ToRpcStatus(*finish_));
}

void AttachStream::OnCancel() {
  MutexLock lock(mu_);
  DropQueue();
  if (!finish_) finish_ = absl::CancelledError("the client went away");
  if (!writing_) FinishNow();
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
