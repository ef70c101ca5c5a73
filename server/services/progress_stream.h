// The reactor of a long call that reports its progress, between gRPC and the thread that does the
// work.
//
// A report that waits while an earlier one is being written is replaced by the next report, so a
// slow caller does not slow the work.
// Ownership: deletes itself when gRPC is done with it.  The thread that does the work may use it
// until it calls End.
// Thread-safety: all methods from any thread.
// Locks: mu_ is held while gRPC is asked to write, and by OnWriteDone while it finishes the call.
#pragma once

#include <optional>
#include <utility>

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "proto/convert/convert.h"
#include "server/runtime/shares.h"
#include "server/services/call_deadline.h"
#include "server/services/rpc_status.h"
#include "storage/mutex.h"

namespace larder {

template <class Message>
class ProgressStream final : public grpc::ServerWriteReactor<Message> {
 public:
  explicit ProgressStream(grpc::CallbackServerContext& context)
      : deadline_(context, CallDeadline::kWork) {}

  // Keeps the ticket until just before the call is finished.  REQUIRES: the work has not begun.
  void Hold(Shares::Ticket ticket) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ticket_ = std::move(ticket);
  }

  // Sends the message, or keeps it as the next one if an earlier one is being written.  Returns
  // false if the call is known to have been cancelled.
  [[nodiscard]] bool Report(Message message) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (cancelled_) return false;
    next_ = std::move(message);
    WriteNext();
    return true;
  }
  // Reports what `progress` encodes to (proto/convert), and returns what Report returns.
  template <class Progress>
  [[nodiscard]] bool ReportEncoded(const Progress& progress) {
    Message message;
    wire::Encode(progress, &message);
    return Report(std::move(message));
  }
  // Finishes the call after the last report.  Must be called exactly once; the caller must not use
  // this object afterwards.
  void End(const absl::Status& status) LARDER_EXCLUDES(mu_) {
    std::optional<absl::Status> now;
    {
      MutexLock lock(mu_);
      end_ = status;
      now = TakeEnd();
    }
    if (now) this->Finish(ToRpcStatus(*now));  // without the lock: Finish may delete this
  }

  void OnWriteDone(bool ok) override LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    writing_ = false;
    cancelled_ = cancelled_ || !ok;
    WriteNext();
    if (const auto end = TakeEnd()) this->Finish(ToRpcStatus(*end));
  }
  void OnCancel() override LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    cancelled_ = true;
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() LARDER_REQUIRES(mu_) {
    if (writing_ || cancelled_ || !next_) return;
    sent_ = std::move(*std::exchange(next_, std::nullopt));
    writing_ = true;
    this->StartWrite(&sent_);
  }
  // Returns the status to finish the call with, at most once; nullopt if a report is still to be
  // written or End was not called.
  [[nodiscard]] std::optional<absl::Status> TakeEnd() LARDER_REQUIRES(mu_) {
    if (writing_ || (next_ && !cancelled_)) return std::nullopt;
    if (end_) ticket_.Reset();  // before the caller sees the end: OnDone may come much later
    return std::exchange(end_, std::nullopt);
  }

  const CallDeadline deadline_;
  Mutex mu_;
  Shares::Ticket ticket_ LARDER_GUARDED_BY(mu_);
  Message sent_ LARDER_GUARDED_BY(mu_);  // the report that is being written
  std::optional<Message> next_ LARDER_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ LARDER_GUARDED_BY(mu_);
  bool writing_ LARDER_GUARDED_BY(mu_) = false;
  bool cancelled_ LARDER_GUARDED_BY(mu_) = false;
};

}  // namespace larder
