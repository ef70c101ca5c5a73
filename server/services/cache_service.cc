#include "server/services/cache_service.h"

#include <span>
#include <utility>

#include "client/wire/convert.h"
#include "server/services/caller.h"
#include "server/services/rpc_status.h"

namespace larder {
namespace {

grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToRpcStatus(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* CacheService::Lookup(grpc::CallbackServerContext* context,
                                               const v1::LookupRequest* request,
                                               v1::LookupReply* reply) {
  ++deps_.counters.requests_lookup;
  const Admission::Answer answer = admission_.EnterCall();
  if (!answer.admitted()) {
    ++deps_.counters.calls_overloaded;
    return Done(context, Overloaded(*context, answer.retry_after, "too many calls"));
  }
  wire::LookupQuery query;
  absl::Status status = wire::DecodeInPlace(*request, &query);
  if (status.ok()) status = CheckTenant(query.tenant, deps_.tenant);
  if (!status.ok()) {
    ++deps_.counters.invalid_messages;
    return Done(context, status);
  }
  query.content.tenant = deps_.tenant;
  const Digest content_id = query.content.Id();
  const std::span<const uint32_t> tokens(request->tokens().data(),
                                         static_cast<size_t>(request->tokens_size()));
  if (!tokens.empty()) query.digests = Chain(content_id, tokens);
  wire::LookupResult result;
  result.boot_id = deps_.boot_id;
  result.instances = deps_.instances.Lookup(content_id, query.digests, query.engine_id);
  wire::Encode(result, reply);
  return Done(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CacheService::ListInstances(grpc::CallbackServerContext* context,
                                                      const v1::ListInstancesRequest* request,
                                                      v1::ListInstancesReply* reply) {
  ++deps_.counters.requests_list_instances;
  const Admission::Answer answer = admission_.EnterCall();
  if (!answer.admitted()) {
    ++deps_.counters.calls_overloaded;
    return Done(context, Overloaded(*context, answer.retry_after, "too many calls"));
  }
  std::string tenant;
  absl::Status status = wire::Decode(*request, &tenant);
  if (status.ok()) status = CheckTenant(tenant, deps_.tenant);
  if (status.ok()) wire::Encode(deps_.instances.List(), reply);
  return Done(context, status);
}

grpc::ServerUnaryReactor* CacheService::QueryIp(grpc::CallbackServerContext* context,
                                                const v1::QueryIpRequest* request,
                                                v1::QueryIpReply* reply) {
  ++deps_.counters.requests_query_ip;
  const Admission::Answer answer = admission_.EnterCall();
  if (!answer.admitted()) {
    ++deps_.counters.calls_overloaded;
    return Done(context, Overloaded(*context, answer.retry_after, "too many calls"));
  }
  if (absl::Status s = CheckTenant(request->tenant(), deps_.tenant); !s.ok())
    return Done(context, s);
  const wire::InstanceInfo info = deps_.instances.Find(request->engine_id());
  if (info.engine_id.empty()) {
    return Done(context, absl::NotFoundError("engine_id: no such engine is or was attached"));
  }
  reply->set_attached(info.attached);
  // Only socket files are served so far, so every session is on this host.
  for (size_t i = 0; i < info.sessions.size(); ++i) reply->add_addresses("local");
  return Done(context, absl::OkStatus());
}

}  // namespace larder
