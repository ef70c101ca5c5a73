// The caller of a call: the process behind its sideband token, the tenant that it may name, and the
// shares that its call uses.
//
// Ownership: none, except UnaryCall below.
// Thread-safety: any thread, except UnaryCall below.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/statusor.h"
#include "server/connections/connection_peers.h"
#include "server/processes/process_table.h"
#include "server/runtime/shares.h"
#include "server/services/call_deadline.h"
#include "server/services/rpc_status.h"
#include "server/sessions/session_context.h"
#include "storage/clock.h"

namespace larder {

inline constexpr char kTokenMetadata[] = "larder-token";  // 32 hex digits
inline constexpr char kRetryMetadata[] =
    "larder-retry-after-ms";  // trailing metadata of RESOURCE_EXHAUSTED

// Returns nullopt if the call carries no token, Unauthenticated if its token is malformed or of no
// live sideband.
[[nodiscard]] absl::StatusOr<std::optional<AttachedProcess>> CallerOf(
    const grpc::ServerContextBase& context, const ProcessTable& processes);

// Returns the account that a call is charged to: that of the process of its token.  Calls without
// a token are charged to one account per user, which counts as one process of that user; if the
// kernel names no user, they share one account.
[[nodiscard]] Shares::Account AccountOf(const grpc::ServerContextBase& context,
                                        const std::optional<AttachedProcess>& caller,
                                        const SessionDeps& deps);
// The same, except that a call whose token is not valid counts as a call without one.
[[nodiscard]] Shares::Account AccountOf(const grpc::ServerContextBase& context,
                                        const SessionDeps& deps);

// Returns PermissionDenied unless `named` is empty or the caller's own tenant.
[[nodiscard]] absl::Status CheckTenant(std::string_view named, std::string_view own);

// Returns RESOURCE_EXHAUSTED and puts the retry hint into the trailing metadata.  There is no hint
// if `retry_after` is 0, because a retry cannot succeed then.
[[nodiscard]] absl::Status Overloaded(grpc::ServerContextBase& context, Duration retry_after,
                                      std::string_view what);

// The reactor of a unary call, with the call's share of kCalls.  The share is released before the
// answer is sent, so that a caller that makes one call at a time never finds its own share in use.
// The answer is charged to the caller until the caller has read it, which must happen within 30 s
// for a long answer.  A short answer that cannot be charged is sent nevertheless; the call then
// keeps its share of kCalls until the answer is read, which must happen within 30 s too.
// Ownership: deletes itself when gRPC is done with it, which is after Finish.
// Thread-safety: one thread at a time.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Finish sends `reply`.
  UnaryCall(grpc::CallbackServerContext& context, google::protobuf::MessageLite& reply,
            const SessionDeps& deps)
      : context_(context), reply_(reply), deps_(deps), account_(AccountOf(context, deps)) {}
  [[nodiscard]] grpc::CallbackServerContext& context() const { return context_; }
  // The caller's account when the call began; its token may become invalid meanwhile.
  [[nodiscard]] const Shares::Account& account() const { return account_; }
  void Hold(Shares::Ticket place) { place_ = std::move(place); }
  // Charges an answer of about `bytes` bytes in advance, so that no work is done whose answer
  // cannot be sent.  Returns ResourceExhausted, with which the caller must finish the call, if the
  // share does not allow it.
  [[nodiscard]] absl::Status ReserveAnswer(size_t bytes);
  // Either Finish or Refuse must be called, exactly once.
  void Finish(const absl::Status& status);
  // As Finish, for a request that violates the contract; it is counted.
  void Refuse(const absl::Status& status);

 private:
  void OnDone() override { delete this; }
  // Lets gRPC call OnDone on the current thread, as it does for its own reactor, because OnDone
  // never waits.  Handing OnDone to another thread would take a quarter of the time of a short
  // call.
  bool InternalInlineable() override { return true; }
  // Returns nullopt if the answer is charged, otherwise the refusal.
  [[nodiscard]] std::optional<Shares::Answer> ChargeAnswer(size_t bytes);
  [[nodiscard]] absl::Status NoRoom(const Shares::Answer& refusal);

  grpc::CallbackServerContext& context_;
  google::protobuf::MessageLite& reply_;
  const SessionDeps& deps_;
  const Shares::Account account_;
  Shares::Ticket place_, answer_;
  std::optional<CallDeadline> deadline_;
};

}  // namespace larder
