// CacheService: Clear.
#include <functional>
#include <memory>
#include <utility>

#include "proto/convert/convert.h"
#include "server/services/cache_service.h"
#include "server/services/caller.h"
#include "server/verbs/block_scope.h"
#include "storage/status_macros.h"

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

void CacheService::AnswerClear(UnaryCall& call, const v1::ClearRequest& request,
                               v1::ClearReply* reply) {
  ++deps_.counters.requests_clear;
  if (!Begin(call, Draining::kServed)) return;
  wire::ClearQuery query;
  absl::Status status = wire::DecodeInPlace(request, &query);
  if (status.ok())
    status = CheckClearedTiers(query.tiers, !request.tiers().empty(), pins_.durable());
  if (!status.ok()) return call.Refuse(status);
  auto scope = ScopeOf(query.tenant, query.scope, query.blocks, request.blocks());
  if (!scope.ok()) return call.Refuse(scope.status());
  if (status = call.ReserveAnswer(AnswerBytesOf(scope->blocks)); !status.ok())
    return call.Finish(status);
  auto what = std::make_shared<ClearVerb::What>(ClearVerb::What{
      .scope = *std::move(scope),
      .tiers = query.tiers,
      .pinned = query.pinned,
      .dry_run = query.dry_run,
  });
  const bool taken = long_calls_.clearing.Submit([this, &call, reply, what] {
    // The call may have waited for long.  If its caller has given up, it must not clear blocks that
    // were stored since.
    if (call.context().IsCancelled())
      return call.Finish(absl::CancelledError("the caller has ended the call"));
    RunClear(*what, reply, [&call](const absl::Status& done) { call.Finish(done); });
  });
  if (!taken) call.Finish(TooManyLongCalls(&call.context()));
}

// The blocks that engines have are found before HOST and DISK are cleared, because finding them may
// need the blocks that are stored there.  No thread waits for the engines' answers.
void CacheService::RunClear(const ClearVerb::What& what, v1::ClearReply* reply,
                            std::function<void(const absl::Status&)> done) {
  const bool of_device = (what.tiers & TierBit(Tier::kDevice)) != 0;
  ClearVerb::What stored = what;
  stored.tiers = what.tiers & kStoredTiers;
  DeviceVerbs::Blocks blocks;
  absl::Status status =
      of_device ? long_calls_.device_verbs.Find(what.scope, &blocks) : absl::OkStatus();
  wire::ClearResult result;
  if (stored.tiers != 0) status.Update(long_calls_.clear.Clear(stored, &result));
  const auto answer = [reply, status, done = std::move(done)](const wire::ClearResult& cleared) {
    wire::Encode(cleared, reply);
    done(status);
  };
  if (!of_device) return answer(result);
  long_calls_.device_verbs.Clear(what.scope, {.pinned = what.pinned, .dry_run = what.dry_run},
                                 std::move(blocks), std::move(result), answer);
}

absl::StatusOr<BlockScope> CacheService::ScopeOf(const std::string& tenant,
                                                 wire::SelectionScope scope,
                                                 wire::BlockSelection& selection,
                                                 const v1::BlockSelection& request) const {
  LARDER_RETURN_IF_ERROR(CheckTenant(tenant, deps_.tenant));
  selection.content.tenant = deps_.tenant;
  const Digest content_id = request.has_content() ? selection.content.Id() : Digest();
  return MakeScope(scope, selection, content_id, TokensOf(request), deps_.instances, deps_.store);
}

}  // namespace larder
