// The gRPC stream of a session (Engine.Attach): reads the client's messages (Up) and writes the
// daemon's (Down), one of each at a time.
//
// Ownership: deletes itself in OnDone, as gRPC's callback API requires.
// Thread-safety: Send, Finish and Abort from any thread.  gRPC calls the reactor's methods.
// Locks: mu_ may be held while gRPC is asked to read, write or finish, and while a share is taken.
// The session is called without it, and calls this object under the session's locks.
// Limits: reading pauses when more than kQueuedMax bytes of answers wait to be written, so that a
// client which sends requests and does not read cannot fill the daemon's memory.
// Memory: gRPC delivers a message as bytes.  A message longer than kSmallBytes is charged to the
// session's account before it is parsed, until it has been handled.  If the share is full, the
// message may wait unparsed, charged to ShareKind::kWaitingBytes; the session ends if the message
// cannot wait, and may end if it waits for too long (kWaitMax).  Answers that wait are charged
// (ChargeAnswers).  Between two messages, message_ and down_ each keep at most about
// SessionCodec::kKeptBytes.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "larder/v1/engine.pb.h"
#include "proto/frames/session_codec.h"
#include "server/runtime/shares.h"
#include "server/sessions/session_table.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class AttachStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public SessionSink {
 public:
  AttachStream(grpc::CallbackServerContext& context, SessionDeps& deps, SessionTable& sessions)
      : context_(context), deps_(deps), sessions_(sessions) {}
  // Begins a session, or ends the stream with the reason why there is none.
  void Start(std::optional<AttachedProcess> process, const ShareHolder& holder, std::string peer);
  // Ends the stream without a session.
  void Refuse(const absl::Status& status);

  void Send(wire::Down message) override LARDER_EXCLUDES(mu_);
  void Finish(absl::Status status) override LARDER_EXCLUDES(mu_);
  void Abort() override { context_.TryCancel(); }

 private:
  static constexpr size_t kSmallBytes = 32 << 10;      // a longer message is charged
  static constexpr std::chrono::seconds kWaitMax{60};  // wait for capacity; then HasItsPart decides
  static constexpr std::chrono::seconds kAskAgain{1};  // least time between calls of HasItsPart
  static constexpr std::chrono::milliseconds kRetry{10};  // pause if no capacity or worker is free

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void EndSession();  // idempotent
  // The steps of handling up_; none blocks.  AwaitRoom charges the message, or tries again later if
  // the message must wait; HandToWorker passes a long message to a worker, because gRPC's few
  // threads serve all calls; HandleRead parses the message, passes it to the session and calls
  // EndRead.
  void AwaitRoom() LARDER_EXCLUDES(mu_);
  void HandToWorker() LARDER_EXCLUDES(mu_);
  void HandleRead() LARDER_EXCLUDES(mu_);
  // Completes the handling of up_, and ends the session if the status is not OK.
  void EndRead(absl::Status status) LARDER_EXCLUDES(mu_);
  void RetryLater(std::function<void()> again) LARDER_REQUIRES(mu_);
  // Parses up_ into message_.
  [[nodiscard]] absl::Status Parse();
  // Charges the message in up_ if it is long.  Returns nullopt if the message must wait until it
  // can be charged, and ResourceExhausted if it cannot wait or has waited for too long.
  [[nodiscard]] std::optional<absl::StatusOr<Shares::Ticket>> TakeRoom();
  void WriteNext() LARDER_REQUIRES(mu_);
  // Returns true if nothing is left to do except to call gRPC's Finish, which the caller must then
  // do.  Returns true at most once.
  [[nodiscard]] bool TakeEnd() LARDER_REQUIRES(mu_);
  void FinishIfDone() LARDER_REQUIRES(mu_);
  void DropQueue() LARDER_REQUIRES(mu_);
  // Charges the answers in queue_ and the one that is being written.  If the share does not allow
  // that, drops the answers in queue_; the stream ends.
  void ChargeQueue() LARDER_REQUIRES(mu_);

  grpc::CallbackServerContext& context_;
  SessionDeps& deps_;
  SessionTable& sessions_;
  Shares::Account account_;                   // the session's, const after Start
  std::shared_ptr<AttachedSession> session_;  // const after Start
  grpc::ByteBuffer up_;                       // the message that was read, or is being read
  std::optional<SessionCodec> parser_;        // kept to reuse its memory
  wire::Up message_;                          // the parsed up_; its memory is reused too
  v1::Down down_;                             // the message that is being written
  grpc::ByteBuffer written_;                  // its bytes
  Shares::Ticket room_;                       // charges up_ and message_
  Shares::Ticket waits_;                      // charges up_ while it waits for capacity
  std::optional<TimePoint> waits_from_;       // since when up_ waits for capacity
  TimePoint asked_;                           // when HasItsPart was last called
  std::optional<grpc::Alarm> retry_;          // tries again to handle up_

  Mutex mu_;
  std::deque<wire::Down> queue_ LARDER_GUARDED_BY(mu_);
  size_t queued_ LARDER_GUARDED_BY(mu_) = 0;  // the weight of queue_
  bool writing_ LARDER_GUARDED_BY(mu_) = false;
  size_t written_weight_ LARDER_GUARDED_BY(mu_) = 0;  // of down_, while it is being written
  size_t kept_ LARDER_GUARDED_BY(mu_) = 0;            // about how much memory down_ keeps
  Shares::Ticket answers_ LARDER_GUARDED_BY(mu_);     // charges queued_ and written_weight_
  bool read_paused_ LARDER_GUARDED_BY(mu_) = false;
  // A message is being handled, possibly by a worker or a callback of retry_, which gRPC does not
  // count as part of the call.  The stream must not finish meanwhile, because this object may then
  // be deleted.
  bool handling_ LARDER_GUARDED_BY(mu_) = false;
  bool finished_ LARDER_GUARDED_BY(mu_) = false;  // gRPC's Finish was called, or is about to be
  std::optional<absl::Status> finish_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
