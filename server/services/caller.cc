#include "server/services/caller.h"

#include <cstring>

#include <grpcpp/grpcpp.h>
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"

#include "absl/strings/str_cat.h"
#include "storage/text.h"

namespace larder {
namespace {

// In Debian, absl::string_view is not std::string_view, so absl functions need an
// absl::string_view.
bool ParseToken(absl::string_view hex, SidebandToken* token) {
  if (hex.size() != 2 * token->size()) return false;
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::memcpy(token->data(), bytes.data(), token->size());
  return true;
}

}  // namespace

absl::StatusOr<std::optional<AttachedProcess>> CallerOf(const grpc::ServerContextBase& context,
                                                        const ProcessTable& processes) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(kTokenMetadata);
  if (it == metadata.end()) return std::optional<AttachedProcess>();
  SidebandToken token{};
  if (!ParseToken({it->second.data(), it->second.size()}, &token)) {
    return absl::UnauthenticatedError("larder-token: not 32 hex digits");
  }
  std::optional<AttachedProcess> process = processes.Find(token);
  if (!process)
    return absl::UnauthenticatedError(
        "larder-token: of no live sideband; connect the sideband again");
  return process;
}

Shares::Account AccountOf(const grpc::ServerContextBase& context,
                          const std::optional<AttachedProcess>& caller, const SessionDeps& deps) {
  if (caller) return deps.shares.Of(HolderOf(*caller));
  std::optional<Shares::Account> account = deps.peers.AccountOf(context.peer());
  return account ? *std::move(account) : deps.shares.Of({});
}

Shares::Account AccountOf(const grpc::ServerContextBase& context, const SessionDeps& deps) {
  const auto caller = CallerOf(context, deps.processes);
  return AccountOf(context, caller.ok() ? *caller : std::nullopt, deps);
}

absl::Status CheckTenant(std::string_view named, std::string_view own) {
  if (named.empty() || named == own) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("tenant '", AbslView(named), "': this caller has no role in it"));
}

absl::Status Overloaded(grpc::ServerContextBase& context, Duration retry_after,
                        std::string_view what) {
  if (retry_after == Duration::zero()) return absl::ResourceExhaustedError(AbslView(what));
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(retry_after).count();
  context.AddTrailingMetadata(kRetryMetadata, absl::StrCat(ms));
  return absl::ResourceExhaustedError(absl::StrCat(AbslView(what), ": retry after ", ms, " ms"));
}

absl::Status UnaryCall::ReserveAnswer(size_t bytes) {
  const std::optional<Shares::Answer> refusal = ChargeAnswer(bytes);
  return refusal ? NoRoom(*refusal) : absl::OkStatus();
}

std::optional<Shares::Answer> UnaryCall::ChargeAnswer(size_t bytes) {
  constexpr size_t kCopies = 2;         // the reply and gRPC's copy of it
  constexpr size_t kCallBytes = 4'096;  // about what gRPC keeps of a call
  const size_t wanted = kCallBytes + kCopies * bytes;
  if (wanted <= answer_.amount()) return std::nullopt;
  Shares::Answer room = account_.Take(ShareKind::kUnreadBytes, wanted - answer_.amount());
  if (!room.admitted()) return room;
  answer_.Merge(std::move(room.ticket));
  return std::nullopt;
}

absl::Status UnaryCall::NoRoom(const Shares::Answer& refusal) {
  ++deps_.counters.calls_overloaded;
  return Overloaded(context_, refusal.retry_after, refusal.why);
}

void UnaryCall::Finish(const absl::Status& status) {
  constexpr size_t kShortAnswer = 16 << 10, kLongAnswer = 32 << 10;
  absl::Status end = status;
  const size_t bytes = status.ok() ? reply_.ByteSizeLong() : 0;
  bool charged = true;
  if (status.ok()) {
    const std::optional<Shares::Answer> refusal = ChargeAnswer(bytes);
    charged = !refusal;
    if (refusal && (bytes > kShortAnswer || !place_)) end = NoRoom(*refusal);
  }
  if (!end.ok()) {
    reply_.Clear();
    answer_.Reset();
  } else if (bytes > kLongAnswer || !charged) {
    deadline_.emplace(context_, CallDeadline::kLinger);
  }
  if (charged || !end.ok()) place_.Reset();
  grpc::ServerUnaryReactor::Finish(ToRpcStatus(end));
}

void UnaryCall::Refuse(const absl::Status& status) {
  ++deps_.counters.invalid_messages;
  Finish(status);
}

}  // namespace larder
