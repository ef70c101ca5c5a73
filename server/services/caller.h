// Who calls: the process behind a call's sideband token, the tenant it may name, and the place that
// its call has.
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
#include "server/sessions/session.h"
#include "storage/clock.h"

namespace larder {

inline constexpr char kTokenMetadata[] = "larder-token";  // 32 hex digits
inline constexpr char kRetryMetadata[] =
    "larder-retry-after-ms";  // trailing, beside RESOURCE_EXHAUSTED

// nullopt: the call carries no token.  Unauthenticated: one that is malformed, or of no live
// sideband.
[[nodiscard]] absl::StatusOr<std::optional<AttachedProcess>> CallerOf(
    const grpc::ServerContextBase& context, const ProcessTable& processes);

// Who holds what a call takes: the process of its token; without one, all callers without of the
// user that connected, as one process of his; and those of whom the kernel names no user together.
[[nodiscard]] Shares::Account AccountOf(const grpc::ServerContextBase& context,
                                        const std::optional<AttachedProcess>& caller,
                                        const SessionDeps& deps);
// Likewise; a call with a token that is of no use is as good as one without.
[[nodiscard]] Shares::Account AccountOf(const grpc::ServerContextBase& context,
                                        const SessionDeps& deps);

// PermissionDenied unless `named` is empty or the caller's own tenant.
[[nodiscard]] absl::Status CheckTenant(std::string_view named, std::string_view own);

// RESOURCE_EXHAUSTED with the retry hint in the trailing metadata; without one where it is 0, since
// to ask for so much again is of no use.
[[nodiscard]] absl::Status Overloaded(grpc::ServerContextBase& context, Duration retry_after,
                                      std::string_view what);

// The reactor of a unary call, with its place, which is free before the caller hears the end: who
// asks for one thing at a time never finds it taken.  The answer is charged to the caller until he
// has read it, for which a long one leaves him 30 s.  A short one for which there is no room is
// sent all the same; the call keeps its place then until it was read, for which there are 30 s,
// too.
// Ownership: deletes itself when gRPC is done with it, which is after Finish.
// Thread-safety: one thread at a time.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // `reply`: what Finish sends.
  UnaryCall(grpc::CallbackServerContext& context, google::protobuf::MessageLite& reply,
            const SessionDeps& deps)
      : context_(context), reply_(reply), deps_(deps), account_(AccountOf(context, deps)) {}
  [[nodiscard]] grpc::CallbackServerContext& context() const { return context_; }
  // Of the caller, as he was when the call began: his token may go with his sideband meanwhile.
  [[nodiscard]] const Shares::Account& account() const { return account_; }
  void Hold(Shares::Ticket place) { place_ = std::move(place); }
  // Charges for an answer of about so many bytes, so that work is not done whose answer cannot be
  // given.  ResourceExhausted: there is no room; the call is to be finished with that.
  [[nodiscard]] absl::Status ReserveAnswer(size_t bytes);
  // Exactly once, or Refuse.
  void Finish(const absl::Status& status);
  // As Finish, of a request that breaks the contract: it is counted.
  void Refuse(const absl::Status& status);

 private:
  void OnDone() override { delete this; }
  // OnDone waits for nothing, so gRPC may call it where it is, as it does that of its own reactor:
  // to have another thread do it costs a short call a quarter of its time.
  bool InternalInlineable() override { return true; }
  // What was refused of it; nullopt: it is charged.
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
