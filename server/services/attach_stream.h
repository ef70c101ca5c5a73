// The gRPC side of a session: reads Up, writes Down, one of each at a time.
//
// Ownership: deletes itself in OnDone, as gRPC's callback API wants.  Thread-safety: as
// SessionSink.
// Back-pressure: reading stops while more than kQueuedMax bytes of answers wait to be written, so a
// client that does not read cannot make the daemon grow.
// Memory: gRPC hands over bytes, which are parsed here once they are charged: a message beyond
// kSmallBytes to its process's share while it is handled.  Where there is no room for it, it waits
// as bytes, and those are charged to what may wait; where that is used up, the session ends.
// The process is charged for answers that wait (ChargeAnswers).  Between two messages the stream
// keeps about SessionCodec::kKeptBytes of each direction, to use their memory again.
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
  // Begins a session, or ends the stream with why not.
  void Start(std::optional<AttachedProcess> process, const ShareHolder& holder, std::string peer);
  // Ends the stream before it began.
  void Refuse(const absl::Status& status);

  void Send(wire::Down message) override LARDER_EXCLUDES(mu_);
  void Finish(absl::Status status) override LARDER_EXCLUDES(mu_);
  void Abort() override { context_.TryCancel(); }

 private:
  static constexpr size_t kSmallBytes = 32 << 10;      // of a message that takes what all share
  static constexpr std::chrono::seconds kWaitMax{60};  // for room, where others wait for ours
  static constexpr std::chrono::seconds kAskAgain{
      1};  // between two questions whether it HasItsPart
  static constexpr std::chrono::milliseconds kRetry{10};  // when there is no room for it

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void EndSession();  // idempotent
  // What becomes of up_, step by step: it waits for room, is handled by a thread that long messages
  // have (gRPC's few serve all), and then there is another read, or the end.
  void AwaitRoom() LARDER_EXCLUDES(mu_);
  void HandToWorker() LARDER_EXCLUDES(mu_);
  void HandleRead() LARDER_EXCLUDES(mu_);
  // Not OK: ends the session with it.
  void EndRead(absl::Status status) LARDER_EXCLUDES(mu_);
  void RetryLater(std::function<void()> again) LARDER_REQUIRES(mu_);
  // Of up_, into message_.
  [[nodiscard]] absl::Status Parse();
  // nullopt: not yet.  ResourceExhausted: never, or not soon enough.
  [[nodiscard]] std::optional<absl::StatusOr<Shares::Ticket>> TakeRoom();
  void WriteNext() LARDER_REQUIRES(mu_);
  // What is left to do is to tell gRPC the end: once, by who is told so.
  [[nodiscard]] bool TakeEnd() LARDER_REQUIRES(mu_);
  void FinishIfDone() LARDER_REQUIRES(mu_);
  void DropQueue() LARDER_REQUIRES(mu_);
  // Charges for the answers in queue_ and for the one that is written, or ends the stream.
  void ChargeQueue() LARDER_REQUIRES(mu_);

  grpc::CallbackServerContext& context_;
  SessionDeps& deps_;
  SessionTable& sessions_;
  Shares::Account account_;                   // the session's, const after Start
  std::shared_ptr<AttachedSession> session_;  // const after Start
  grpc::ByteBuffer up_;                       // of the read under way
  std::optional<SessionCodec> parser_;        // its memory is reused, as is
  wire::Up message_;                          // what it says
  v1::Down down_;                             // of the write under way, and
  grpc::ByteBuffer written_;                  // its bytes
  Shares::Ticket room_;                       // for up_ and what it says
  Shares::Ticket waits_;                      // of up_, for as long as it waits for room
  std::optional<TimePoint> waits_from_;       // up_, for room
  TimePoint asked_;                           // when HasItsPart was asked last
  std::optional<grpc::Alarm> retry_;          // looks at up_ again

  Mutex mu_;
  std::deque<wire::Down> queue_ LARDER_GUARDED_BY(mu_);
  size_t queued_ LARDER_GUARDED_BY(mu_) = 0;  // their weight
  bool writing_ LARDER_GUARDED_BY(mu_) = false;
  size_t written_weight_ LARDER_GUARDED_BY(mu_) = 0;  // of down_, while it is written
  size_t kept_ LARDER_GUARDED_BY(mu_) = 0;            // in down_, at most
  Shares::Ticket answers_ LARDER_GUARDED_BY(mu_);     // for queued_ and written_weight_
  bool read_paused_ LARDER_GUARDED_BY(mu_) = false;
  // A read is looked at, perhaps by a callback of retry_, of which gRPC does not know: the end
  // waits, as it deletes this.
  bool handling_ LARDER_GUARDED_BY(mu_) = false;
  bool finished_ LARDER_GUARDED_BY(mu_) = false;  // base Finish was called, or will be now
  std::optional<absl::Status> finish_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
