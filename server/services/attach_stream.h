// The gRPC side of a session: reads Up, writes Down, one of each at a time.
//
// Ownership: deletes itself in OnDone, as gRPC's callback API wants.  Thread-safety: as
// SessionSink.
// Back-pressure: reading stops while more than kQueuedMax bytes of answers wait to be written, so a client
// that does not read cannot make the daemon grow.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "larder/v1/engine.pb.h"
#include "server/session_table.h"
#include "storage/mutex.h"

namespace larder {

class AttachStream final : public grpc::ServerBidiReactor<v1::Up, v1::Down>, public SessionSink {
 public:
  AttachStream(grpc::CallbackServerContext& context, SessionDeps& deps, SessionTable& sessions)
      : context_(context), deps_(deps), sessions_(sessions) {}
  // Begins a session, or ends the stream with why not.
  void Start(std::optional<AttachedProcess> process, std::string peer);
  // Ends the stream before it began.
  void Refuse(const absl::Status& status);

  void Send(wire::Down message) override LARDER_EXCLUDES(mu_);
  void Finish(absl::Status status) override LARDER_EXCLUDES(mu_);
  void Abort() override { context_.TryCancel(); }

 private:
  static constexpr size_t kQueuedMax = 1 << 20;  // bytes

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void EndSession();  // idempotent
  void WriteNext() LARDER_REQUIRES(mu_);
  void FinishNow() LARDER_REQUIRES(mu_);
  void DropQueue() LARDER_REQUIRES(mu_);

  grpc::CallbackServerContext& context_;
  SessionDeps& deps_;
  SessionTable& sessions_;
  std::shared_ptr<AttachedSession> session_;  // const after Start
  v1::Up up_;                                 // of the read under way; its memory is reused, as is
  wire::Up message_;                          // what it says
  v1::Down down_;                             // of the write under way

  Mutex mu_;
  std::deque<wire::Down> queue_ LARDER_GUARDED_BY(mu_);
  size_t queued_ LARDER_GUARDED_BY(mu_) = 0;  // their weight
  bool writing_ LARDER_GUARDED_BY(mu_) = false;
  bool read_paused_ LARDER_GUARDED_BY(mu_) = false;
  bool finished_ LARDER_GUARDED_BY(mu_) = false;  // base Finish was called
  std::optional<absl::Status> finish_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
