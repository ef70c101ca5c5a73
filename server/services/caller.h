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
#include "server/connection_peers.h"
#include "server/process_table.h"
#include "server/services/rpc_status.h"
#include "server/session.h"
#include "server/shares.h"
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

// RESOURCE_EXHAUSTED with the retry hint in the trailing metadata.
[[nodiscard]] absl::Status Overloaded(grpc::ServerContextBase& context, Duration retry_after,
                                      std::string_view what);

// The reactor of a unary call, with its place, which is free before the caller hears the end: who
// asks for one thing at a time never finds it taken.  An answer beyond kFreeBytes is charged to the
// caller until he has read it.
// Ownership: deletes itself when gRPC is done with it, which is after Finish.
// Thread-safety: one thread at a time.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  static constexpr size_t kFreeBytes = 64 << 10;

  // `reply`: what Finish sends.
  UnaryCall(grpc::CallbackServerContext& context, const google::protobuf::MessageLite& reply,
            const SessionDeps& deps)
      : context_(context), reply_(reply), deps_(deps) {}
  [[nodiscard]] grpc::CallbackServerContext& context() const { return context_; }
  void Hold(Shares::Ticket place) { place_ = std::move(place); }
  // Exactly once, or Refuse.
  void Finish(const absl::Status& status);
  // As Finish, of a request that breaks the contract: it is counted.
  void Refuse(const absl::Status& status);

 private:
  void OnDone() override { delete this; }

  grpc::CallbackServerContext& context_;
  const google::protobuf::MessageLite& reply_;
  const SessionDeps& deps_;
  Shares::Ticket place_, answer_;
};

}  // namespace larder
