#include "server/services/cache_service.h"

#include <span>
#include <utility>
#include <vector>

#include "proto/convert/convert.h"
#include "server/services/caller.h"
#include "server/services/rpc_status.h"

namespace larder {
namespace {

// The retry hint of a call that is refused because too many calls of the same method wait.
constexpr Duration kRetryAfterLongCalls = std::chrono::seconds(1);
constexpr size_t kPageBytesMax = 1 << 20;  // of instances; the first of a page may be larger

}  // namespace

CacheService::CacheService(Socket socket, SessionDeps& deps, const SessionTable& sessions,
                           PinVerb& pins, LongCalls long_calls, EventStreams& events)
    : ChargedAt(socket, deps, long_calls.answering),
      for_engines_(socket == Socket::kData),
      deps_(deps),
      sessions_(sessions),
      pins_(pins),
      long_calls_(long_calls),
      events_(events) {
  using Api = v1::Cache;
  Charge<Api::WithCallbackMethod_Lookup>(&CacheService::AnswerLookup);
  Charge<Api::WithCallbackMethod_ListInstances>(&CacheService::AnswerListInstances);
  Charge<Api::WithCallbackMethod_QueryIp>(&CacheService::AnswerQueryIp);
  Charge<Api::WithCallbackMethod_Pin>(&CacheService::AnswerPin);
  Charge<Api::WithCallbackMethod_Unpin>(&CacheService::AnswerUnpin);
  Charge<Api::WithCallbackMethod_Prefetch>(&CacheService::AnswerPrefetch);
  Charge<Api::WithCallbackMethod_Clear>(&CacheService::AnswerClear);
  Charge<Api::WithCallbackMethod_Move>(&CacheService::Move);
  Charge<Api::WithCallbackMethod_Compress>(&CacheService::Compress);
  Charge<Api::WithCallbackMethod_WatchEvents>(&CacheService::WatchEvents);
}

void CacheService::AnswerLookup(UnaryCall& call, const v1::LookupRequest& request,
                                v1::LookupReply* reply) {
  ++deps_.counters.requests_lookup;
  if (!Begin(call, Draining::kServed)) return;
  const TimePoint begun = deps_.clock.Now();
  wire::LookupQuery query;
  absl::Status status = wire::DecodeInPlace(request, &query);
  if (status.ok()) status = CheckTenant(query.tenant, deps_.tenant);
  if (!status.ok()) return call.Refuse(status);
  query.content.tenant = deps_.tenant;
  const Digest content_id = query.content.Id();
  const std::span<const uint32_t> tokens(request.tokens().data(),
                                         static_cast<size_t>(request.tokens_size()));
  if (!tokens.empty()) query.digests = Chain(content_id, tokens);
  wire::LookupResult result;
  result.boot_id = deps_.boot_id;
  result.instances = deps_.instances.Lookup(query.content, query.digests, query.engine_id);
  wire::Encode(result, reply);
  deps_.counters.latencies.lookup.Observe(deps_.clock.Now() - begun);
  call.Finish(absl::OkStatus());
}

void CacheService::AnswerListInstances(UnaryCall& call, const v1::ListInstancesRequest& request,
                                       v1::ListInstancesReply* reply) {
  ++deps_.counters.requests_list_instances;
  if (!Begin(call, Draining::kServed)) return;
  wire::InstancesQuery query;
  absl::Status status = wire::Decode(request, &query);
  if (status.ok()) status = CheckTenant(query.tenant, deps_.tenant);
  if (status.ok()) {
    wire::InstancesPage page;
    InstanceTable::Page found =
        deps_.instances.List(query.page_token, query.page_size, kPageBytesMax);
    page.instances = std::move(found.instances);
    if (found.more) page.next_page_token = page.instances.back().engine_id;
    wire::Encode(page, reply);
  }
  call.Finish(status);
}

void CacheService::AnswerQueryIp(UnaryCall& call, const v1::QueryIpRequest& request,
                                 v1::QueryIpReply* reply) {
  ++deps_.counters.requests_query_ip;
  if (!Begin(call, Draining::kServed)) return;
  absl::Status status = CheckTenant(request.tenant(), deps_.tenant);
  const wire::InstanceInfo info =
      status.ok() ? deps_.instances.Find(request.engine_id()) : wire::InstanceInfo{};
  if (status.ok() && info.engine_id.empty())
    status = absl::NotFoundError("engine_id: no engine with this id is or was attached");
  reply->set_attached(info.attached);
  // The daemon serves only socket files so far, so every session is on this host.
  for (size_t i = 0; i < info.sessions.size(); ++i) reply->add_addresses("local");
  call.Finish(status);
}

// ---- common to all calls

bool CacheService::Begin(UnaryCall& call, Draining draining) {
  absl::StatusOr<Shares::Ticket> place = Admit(call.context(), call.account(), draining);
  if (!place.ok()) {
    call.Finish(place.status());
    return false;
  }
  call.Hold(*std::move(place));
  return true;
}

absl::StatusOr<Shares::Ticket> CacheService::Admit(grpc::CallbackServerContext& context,
                                                   const Shares::Account& account,
                                                   Draining draining) {
  if (draining == Draining::kRefused && sessions_.RefusesCalls(deps_.clock.Now()))
    return absl::UnavailableError("larderd is draining: try again when it is back");
  Shares::Answer answer = account.Take(ShareKind::kCalls);
  if (answer.admitted()) return std::move(answer.ticket);
  ++deps_.counters.calls_overloaded;
  return Overloaded(context, answer.retry_after, answer.why);
}

absl::Status CacheService::TooManyLongCalls(grpc::CallbackServerContext* context) {
  ++deps_.counters.calls_overloaded;
  return Overloaded(*context, kRetryAfterLongCalls, "too many long calls wait");
}

}  // namespace larder
