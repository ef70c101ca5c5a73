// CacheService: WatchEvents.
#include "proto/convert/convert.h"
#include "server/services/cache_service.h"
#include "server/services/caller.h"

namespace larder {

EventStreams::Reactor* CacheService::WatchEvents(grpc::CallbackServerContext* context,
                                                 const v1::WatchEventsRequest* request) {
  ++deps_.counters.requests_watch;
  wire::WatchQuery query;
  absl::Status status = wire::Decode(*request, &query);
  if (status.ok()) status = CheckTenant(query.tenant, deps_.tenant);
  if (status.ok() && (query.tiers & TierBit(Tier::kRemote)) != 0)
    status = absl::UnimplementedError("tiers: TIER_REMOTE cannot be watched");
  if (status.ok()) {
    return events_.Watch(*context, AccountOf(*context, deps_), query);
  }
  ++deps_.counters.invalid_messages;
  return EventStreams::Refuse(status);
}

}  // namespace larder
