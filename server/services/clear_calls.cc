// CacheService: Clear.
#include <memory>
#include <optional>
#include <utility>

#include "client/wire/convert.h"
#include "server/block_scope.h"
#include "server/services/cache_service.h"
#include "server/services/caller.h"
#include "server/services/rpc_status.h"

namespace larder {
namespace {

absl::Status CheckClearedTiers(TierSet tiers, bool some_named, bool disk) {
  if ((tiers & TierBit(Tier::kRemote)) != 0)
    return absl::UnimplementedError("tiers: TIER_REMOTE cannot be cleared");
  if (some_named && (tiers & TierBit(Tier::kDisk)) != 0 && !disk)
    return absl::UnimplementedError("tiers: this daemon has no disk; start it with --disk");
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* CacheService::Clear(grpc::CallbackServerContext* context,
                                              const v1::ClearRequest* request,
                                              v1::ClearReply* reply) {
  ++deps_.counters.requests_clear;
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  std::optional<Admission::Ticket> call = Begin(context, reactor);
  if (!call) return reactor;
  wire::ClearQuery query;
  absl::Status status = wire::DecodeInPlace(*request, &query);
  if (status.ok())
    status = CheckClearedTiers(query.tiers, !request->tiers().empty(), pins_.durable());
  if (!status.ok()) return Refuse(reactor, status);
  auto scope = ScopeOf(query.tenant, query.scope, query.blocks, request->blocks());
  if (!scope.ok()) return Refuse(reactor, scope.status());
  auto what = std::make_shared<BlockCleaner::What>(BlockCleaner::What{
      .scope = *std::move(scope),
      .tiers = query.tiers,
      .pinned = query.pinned,
      .dry_run = query.dry_run,
  });
  auto ticket = std::make_shared<Admission::Ticket>(*std::move(call));
  const bool taken = long_calls_.clearing.Submit(0, [this, context, reactor, reply, what, ticket] {
    // It may have waited for long: who asked must not find later that he cleared what came since.
    if (context->IsCancelled())
      return reactor->Finish(ToRpcStatus(absl::CancelledError("the caller has gone")));
    wire::ClearResult result;
    const absl::Status done = long_calls_.cleaner.Clear(*what, &result);
    wire::Encode(result, reply);
    reactor->Finish(ToRpcStatus(done));
  });
  if (!taken) reactor->Finish(ToRpcStatus(TooManyLongCalls(context)));
  return reactor;
}

absl::StatusOr<BlockScope> CacheService::ScopeOf(const std::string& tenant,
                                                 wire::SelectionScope scope,
                                                 wire::BlockSelection& selection,
                                                 const v1::BlockSelection& request) const {
  if (absl::Status status = CheckTenant(tenant, deps_.tenant); !status.ok()) return status;
  selection.content.tenant = deps_.tenant;
  const Digest content_id = request.has_content() ? selection.content.Id() : Digest();
  return MakeScope(scope, selection, content_id, TokensOf(request), deps_.instances, deps_.store);
}

}  // namespace larder
