// CacheService: Compress.
#include <memory>
#include <utility>
#include <vector>

#include "proto/convert/convert.h"
#include "server/services/cache_service.h"
#include "server/services/caller.h"
#include "server/services/progress_stream.h"
#include "server/services/rpc_status.h"
#include "server/verbs/compress.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

absl::Status CheckTiers(TierSet tiers, bool dry_run) {
  if ((tiers & TierBit(Tier::kRemote)) != 0)
    return absl::UnimplementedError("tiers: TIER_REMOTE cannot be compressed");
  if (dry_run && (tiers & TierBit(Tier::kDevice)) != 0)
    return absl::InvalidArgumentError(
        "dry_run: not possible with TIER_DEVICE, whose engines do not report what it would save");
  return absl::OkStatus();
}

}  // namespace

grpc::ServerWriteReactor<v1::CompressProgress>* CacheService::Compress(
    grpc::CallbackServerContext* context, const v1::CompressRequest* request) {
  ++deps_.counters.requests_compress;
  auto* const stream = new ProgressStream<v1::CompressProgress>(*context);
  absl::Status status = BeginCompress(context, *request, stream);
  if (!status.ok()) stream->End(status);
  return stream;
}

absl::Status CacheService::BeginCompress(grpc::CallbackServerContext* context,
                                         const v1::CompressRequest& request,
                                         ProgressStream<v1::CompressProgress>* stream) {
  wire::CompressQuery query;
  const auto check = [&] {
    if (request.tiers().empty() && deps_.disk == nullptr) query.tiers = TierBit(Tier::kHost);
    return CheckTiers(query.tiers, query.dry_run);
  };
  LARDER_ASSIGN_OR_RETURN(BlockScope scope,
                          BeginLongCall(*context, request, *stream, &query, check));
  auto what = std::make_shared<CompressVerb::What>(CompressVerb::What{.scope = std::move(scope),
                                                                      .tiers = query.tiers,
                                                                      .codec = query.codec,
                                                                      .dry_run = query.dry_run});
  const auto compress = [this, stream, what] { RunCompress(*what, stream); };
  return long_calls_.compressing.Submit(compress) ? absl::OkStatus() : TooManyLongCalls(context);
}

void CacheService::RunCompress(const CompressVerb::What& what,
                               ProgressStream<v1::CompressProgress>* stream) {
  const bool of_device = (what.tiers & TierBit(Tier::kDevice)) != 0;
  CompressVerb::What stored = what;
  stored.tiers = what.tiers & kStoredTiers;
  DeviceVerbs::Blocks blocks;
  absl::Status status =
      of_device ? long_calls_.device_verbs.Find(what.scope, &blocks) : absl::OkStatus();
  wire::CompressProgress last;
  last.blocks = blocks.size();
  // With DEVICE, no answers for single blocks are sent before the engines have added theirs.
  const auto report = [stream, &last, of_device,
                       device_blocks = blocks.size()](const wire::CompressProgress& progress) {
    last = progress;
    last.blocks += device_blocks;
    std::vector<wire::BlockAnswer> answers;
    if (of_device) answers.swap(last.answers);
    const bool wanted = stream->ReportEncoded(last);
    if (of_device) answers.swap(last.answers);
    return wanted;
  };
  if (status.ok() && stored.tiers != 0) status = long_calls_.compress.Compress(stored, report);
  if (!of_device || !status.ok()) return stream->End(status);
  long_calls_.device_verbs.Compress(what.scope, what.codec, std::move(blocks), std::move(last),
                                    [stream](const wire::CompressProgress& progress) {
                                      (void)stream->ReportEncoded(progress);
                                      stream->End(absl::OkStatus());
                                    });
}

}  // namespace larder
