#include "client/rpc/rpc_stub.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/rpc/rpc_channel.h"
#include "larder/v1/cache.grpc.pb.h"
#include "proto/convert/convert.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

using Stub = v1::Cache::Stub;

// Makes a unary call of Cache, with values for request and reply.
template <class Value, class Request, class Reply, class Query>
absl::StatusOr<Value> Ask(RpcChannel& channel, const CallLimits& limits, const Query& query,
                          grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                       Reply*)) {
  const auto stub = v1::Cache::NewStub(channel.channel());
  Request request;
  wire::Encode(query, &request);
  return channel.Ask<Value, Reply>(limits, [&](grpc::ClientContext& context, Reply* reply) {
    return (*stub.*method)(&context, request, reply);
  });
}

}  // namespace

RpcStub::RpcStub(const Options& options) : channel_(std::make_shared<RpcChannel>(options)) {}

RpcStub::~RpcStub() = default;

void RpcStub::SetToken(std::string token_hex) { channel_->SetToken(std::move(token_hex)); }

absl::Status RpcStub::WaitConnected(std::chrono::milliseconds deadline) {
  return channel_->WaitConnected(deadline);
}

void RpcStub::AwaitConnection(std::chrono::milliseconds at_most) {
  channel_->AwaitConnection(at_most);
}

absl::StatusOr<wire::LookupResult> RpcStub::Lookup(const wire::LookupQuery& query,
                                                   const CallLimits& limits) {
  return Ask<wire::LookupResult>(*channel_, limits, query, &Stub::Lookup);
}

absl::StatusOr<std::vector<wire::InstanceInfo>> RpcStub::ListInstances(const std::string& tenant,
                                                                       const CallLimits& limits) {
  std::vector<wire::InstanceInfo> all;
  wire::InstancesQuery query{.tenant = tenant, .page_size = 0, .page_token = {}};
  do {
    LARDER_ASSIGN_OR_RETURN(
        wire::InstancesPage page,
        Ask<wire::InstancesPage>(*channel_, limits, query, &Stub::ListInstances));
    std::ranges::move(page.instances, std::back_inserter(all));
    if (page.next_page_token == query.page_token) break;  // the daemon makes no progress
    query.page_token = std::move(page.next_page_token);
  } while (!query.page_token.empty());
  return all;
}

absl::StatusOr<wire::PinResult> RpcStub::Pin(const wire::PinQuery& query,
                                             const CallLimits& limits) {
  return Ask<wire::PinResult>(*channel_, limits, query, &Stub::Pin);
}

absl::StatusOr<wire::UnpinResult> RpcStub::Unpin(const wire::UnpinQuery& query,
                                                 const CallLimits& limits) {
  return Ask<wire::UnpinResult>(*channel_, limits, query, &Stub::Unpin);
}

absl::StatusOr<std::vector<wire::BlockAnswer>> RpcStub::Prefetch(const wire::PrefetchQuery& query,
                                                                 const CallLimits& limits) {
  return Ask<std::vector<wire::BlockAnswer>>(*channel_, limits, query, &Stub::Prefetch);
}

absl::StatusOr<wire::ClearResult> RpcStub::Clear(const wire::ClearQuery& query,
                                                 const CallLimits& limits) {
  return Ask<wire::ClearResult>(*channel_, limits, query, &Stub::Clear);
}

absl::Status RpcStub::Move(const wire::MoveQuery& query, const CallLimits& limits,
                           const std::function<bool(const wire::MoveProgress&)>& take) {
  const auto stub = v1::Cache::NewStub(channel_->channel());
  v1::MoveRequest request;
  wire::Encode(query, &request);
  return channel_->Read<wire::MoveProgress, v1::MoveProgress>(
      limits, [&](grpc::ClientContext& context) { return stub->Move(&context, request); }, take);
}

absl::Status RpcStub::Compress(const wire::CompressQuery& query, const CallLimits& limits,
                               const std::function<bool(const wire::CompressProgress&)>& take) {
  const auto stub = v1::Cache::NewStub(channel_->channel());
  v1::CompressRequest request;
  wire::Encode(query, &request);
  return channel_->Read<wire::CompressProgress, v1::CompressProgress>(
      limits, [&](grpc::ClientContext& context) { return stub->Compress(&context, request); },
      take);
}

absl::Status RpcStub::Watch(const wire::WatchQuery& query, const CallLimits& limits,
                            const std::function<bool(const wire::WatchReply&)>& take) {
  const auto stub = v1::Cache::NewStub(channel_->channel());
  v1::WatchEventsRequest request;
  wire::Encode(query, &request);
  return channel_->Read<wire::WatchReply, v1::WatchEventsReply>(
      limits, [&](grpc::ClientContext& context) { return stub->WatchEvents(&context, request); },
      take);
}

}  // namespace larder
