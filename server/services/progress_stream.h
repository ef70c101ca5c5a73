// A call that takes long and says how far it is: its reactor, between gRPC and the thread that does
// the work.
//
// The last word wins: what was reported while the one before was under way replaces it, so a slow
// caller slows nothing.
// Ownership: its own; it goes when gRPC is done with it.  Whoever works may use it until End.
// Thread-safety: all methods from any thread.
#pragma once

#include <optional>
#include <utility>

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
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

  // Until its end goes out.  REQUIRES: before the work begins.
  void Hold(Shares::Ticket ticket) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ticket_ = std::move(ticket);
  }

  // False: the caller has gone, or wants no more.
  [[nodiscard]] bool Report(Message message) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (cancelled_) return false;
    next_ = std::move(message);
    WriteNext();
    return true;
  }
  // After what was reported last.  Exactly once; not to be used any more.
  void End(const absl::Status& status) LARDER_EXCLUDES(mu_) {
    std::optional<absl::Status> now;
    {
      MutexLock lock(mu_);
      end_ = status;
      now = TakeEnd();
    }
    if (now) this->Finish(ToRpcStatus(*now));  // without the lock: it may be gone by then
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
  // When nothing is left to be written; once.
  [[nodiscard]] std::optional<absl::Status> TakeEnd() LARDER_REQUIRES(mu_) {
    if (writing_ || (next_ && !cancelled_)) return std::nullopt;
    if (end_) ticket_.Reset();  // before the caller hears: OnDone may come much later
    return std::exchange(end_, std::nullopt);
  }

  const CallDeadline deadline_;
  Mutex mu_;
  Shares::Ticket ticket_ LARDER_GUARDED_BY(mu_);
  Message sent_ LARDER_GUARDED_BY(mu_);  // being written
  std::optional<Message> next_ LARDER_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ LARDER_GUARDED_BY(mu_);
  bool writing_ LARDER_GUARDED_BY(mu_) = false;
  bool cancelled_ LARDER_GUARDED_BY(mu_) = false;
};

}  // namespace larder
