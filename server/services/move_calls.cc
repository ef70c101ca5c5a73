// CacheService: Move.
#include <memory>
#include <optional>
#include <utility>

#include "proto/convert/convert.h"
#include "server/services/cache_service.h"
#include "server/services/caller.h"
#include "server/services/progress_stream.h"
#include "server/services/rpc_status.h"
#include "server/verbs/move.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

absl::Status CheckMovedTiers(const wire::MoveQuery& query) {
  const auto is_ours = [](Tier tier) { return tier == Tier::kHost || tier == Tier::kDisk; };
  if (is_ours(query.from) && is_ours(query.to)) return absl::OkStatus();
  return absl::UnimplementedError(
      "from, to: blocks can be moved only between TIER_HOST and TIER_DISK");
}

}  // namespace

grpc::ServerWriteReactor<v1::MoveProgress>* CacheService::Move(grpc::CallbackServerContext* context,
                                                               const v1::MoveRequest* request) {
  ++deps_.counters.requests_move;
  auto* const stream = new ProgressStream<v1::MoveProgress>(*context);
  absl::Status status = BeginMove(context, *request, stream);
  if (!status.ok()) stream->End(status);
  return stream;
}

absl::Status CacheService::BeginMove(grpc::CallbackServerContext* context,
                                     const v1::MoveRequest& request,
                                     ProgressStream<v1::MoveProgress>* stream) {
  wire::MoveQuery query;
  LARDER_ASSIGN_OR_RETURN(BlockScope scope,
                          BeginLongCall(*context, request, *stream, &query,
                                        [&query] { return CheckMovedTiers(query); }));
  auto what = std::make_shared<MoveVerb::What>(MoveVerb::What{
      .scope = std::move(scope), .from = query.from, .to = query.to, .copy = query.copy});
  const auto move = [this, stream, what] {
    stream->End(long_calls_.move.Move(*what, [stream](const wire::MoveProgress& progress) {
      return stream->ReportEncoded(progress);
    }));
  };
  return long_calls_.moving.Submit(move) ? absl::OkStatus() : TooManyLongCalls(context);
}

}  // namespace larder
