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

// Returns the process that the call's sideband token proves; nullopt if the call has no token,
// Unauthenticated if the token is malformed or of no live sideband (the caller must then connect
// the sideband again).
[[nodiscard]] absl::StatusOr<std::optional<AttachedProcess>> CallerOf(
    const grpc::ServerContextBase& context, const ProcessTable& processes);

// Returns the account that a call is charged to: that of `caller`, the process of its token.  Calls
// without a token are charged to one account for each user, which counts as one process of that
// user; calls of unknown users share one account.
[[nodiscard]] Shares::Account AccountOf(const grpc::ServerContextBase& context,
                                        const std::optional<AttachedProcess>& caller,
                                        const SessionDeps& deps);
// Returns the account that a call is charged to, by its token; a call whose token is not valid
// counts as a call without a token.
[[nodiscard]] Shares::Account AccountOf(const grpc::ServerContextBase& context,
                                        const SessionDeps& deps);

// Returns PermissionDenied unless `named` is empty or the caller's own tenant.
[[nodiscard]] absl::Status CheckTenant(std::string_view named, std::string_view own);

// Returns ResourceExhausted.  Puts the retry hint into the trailing metadata, unless `retry_after`
// is 0: then a retry cannot succeed.
[[nodiscard]] absl::Status Overloaded(grpc::ServerContextBase& context, Duration retry_after,
                                      std::string_view what);

// The reactor of a unary call, with the call's place in the share of calls (ShareKind::kCalls).
// The place is usually released before the answer is sent, so that a caller that makes one call at
// a time does not find its own place taken.  A reply is charged to the caller until gRPC is done
// with the call.  A short reply that cannot be charged may be sent nevertheless; the call then
// keeps its place until gRPC is done.  A call with an uncharged or long reply is cancelled if the
// reply is not read within 30 s.
// Ownership: deletes itself when gRPC is done with it, which is after Finish.
// Thread-safety: one thread at a time.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Finish sends `reply`.
  UnaryCall(grpc::CallbackServerContext& context, google::protobuf::MessageLite& reply,
            const SessionDeps& deps)
      : context_(context), reply_(reply), deps_(deps), account_(AccountOf(context, deps)) {}
  [[nodiscard]] grpc::CallbackServerContext& context() const { return context_; }
  // Returns the account to which the call is charged.
  [[nodiscard]] const Shares::Account& account() const { return account_; }
  void Hold(Shares::Ticket place) { place_ = std::move(place); }
  // Charges an answer of about `bytes` bytes in advance, so that work whose answer cannot be sent
  // is seldom done.  Returns ResourceExhausted, with which the caller must finish the call, if the
  // share does not allow it.
  [[nodiscard]] absl::Status ReserveAnswer(size_t bytes);
  // Ends the call with `status`, and with the reply if `status` is OK.  If the reply cannot be
  // charged, may end the call with ResourceExhausted instead.  Either Finish or Refuse must be
  // called, exactly once.
  void Finish(const absl::Status& status);
  // Ends the call with the error `status`, because its request violates the contract, and counts
  // it.
  void Refuse(const absl::Status& status);

 private:
  void OnDone() override { delete this; }
  // Lets gRPC call OnDone on the current thread, as it does for its own reactor, because OnDone
  // never waits.
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
