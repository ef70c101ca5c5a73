// Who calls: the process behind a call's sideband token, the tenant it may name, and the place that
// its call has.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

// A unary call that was admitted, and its place, which is free before the caller hears the end: who
// asks for one thing at a time never finds it taken.
// Thread-safety: one thread at a time.
class UnaryCall {
 public:
  UnaryCall(grpc::ServerUnaryReactor* reactor, Shares::Ticket ticket)
      : reactor_(reactor), ticket_(std::move(ticket)) {}
  // Exactly once.
  void Finish(const absl::Status& status) {
    ticket_.Reset();
    reactor_->Finish(ToRpcStatus(status));
  }
  [[nodiscard]] grpc::ServerUnaryReactor* reactor() const { return reactor_; }

 private:
  grpc::ServerUnaryReactor* const reactor_;
  Shares::Ticket ticket_;
};

}  // namespace larder
