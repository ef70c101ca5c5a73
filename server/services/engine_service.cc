#include "server/services/engine_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/wire/convert.h"
#include "server/services/attach_stream.h"
#include "server/services/byte_streams.h"
#include "server/services/caller.h"
#include "server/services/rpc_status.h"

namespace larder {
namespace {

// Ends a call before it began.
template <class Base>
class Refused final : public Base {
 public:
  explicit Refused(const absl::Status& status) { this->Finish(ToRpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

// In place of the handler that parses first, as the generated WithRawCallbackMethod_Attach does it;
// that one cannot stand above a class that has the other.
EngineService::EngineService(SessionDeps& deps, SessionTable& sessions)
    : ServedAt(Socket::kData), deps_(deps), sessions_(sessions) {
  constexpr int kAttach = 0;  // the first of engine.proto
  MarkMethodRawCallback(
      kAttach, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                   [this](grpc::CallbackServerContext* context) { return AttachRaw(context); }));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* EngineService::AttachRaw(
    grpc::CallbackServerContext* context) {
  using Base = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  absl::StatusOr<std::optional<AttachedProcess>> caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new Refused<Base>(caller.status());
  if (sessions_.draining()) {
    return new Refused<Base>(
        absl::UnavailableError("larderd is draining: attach again when it is back"));
  }
  std::string peer =
      *caller ? absl::StrCat("uid ", (*caller)->uid, " pid ", (*caller)->pid) : context->peer();
  auto* stream = new AttachStream(*context, deps_, sessions_);
  const ShareHolder holder = AccountOf(*context, *caller, deps_).holder();
  stream->Start(*std::move(caller), holder, std::move(peer));
  return stream;
}

grpc::ServerReadReactor<v1::StoreBlocksRequest>* EngineService::StoreBlocks(
    grpc::CallbackServerContext* context, v1::StoreBlocksReply* reply) {
  using Base = grpc::ServerReadReactor<v1::StoreBlocksRequest>;
  ++deps_.counters.requests_store_blocks;
  auto caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new Refused<Base>(caller.status());
  absl::StatusOr<StreamShare> share = EnterStream(*context, *caller);
  if (!share.ok()) return new Refused<Base>(share.status());
  return new StoreStream(*context, deps_, reply, *std::move(share));
}

grpc::ServerWriteReactor<v1::FetchBlocksReply>* EngineService::FetchBlocks(
    grpc::CallbackServerContext* context, const v1::FetchBlocksRequest* request) {
  using Base = grpc::ServerWriteReactor<v1::FetchBlocksReply>;
  ++deps_.counters.requests_fetch_blocks;
  auto caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new Refused<Base>(caller.status());
  wire::FetchBlocksQuery query;
  absl::Status status = wire::Decode(*request, &query);
  if (status.ok()) status = CheckTenant(query.tenant, deps_.tenant);
  if (!status.ok()) {
    ++deps_.counters.invalid_messages;
    return new Refused<Base>(status);
  }
  absl::StatusOr<StreamShare> share = EnterStream(*context, *caller);
  if (!share.ok()) return new Refused<Base>(share.status());
  BlockSender sender(deps_, share->account(), std::move(query.variant), std::move(query.digests),
                     query.first_layer, query.layers);
  return new FetchStream(*context, std::move(sender), *std::move(share));
}

absl::StatusOr<StreamShare> EngineService::EnterStream(
    grpc::CallbackServerContext& context, const std::optional<AttachedProcess>& caller) {
  if (sessions_.RefusesCalls(deps_.clock.Now()))
    return absl::UnavailableError("larderd is draining: try again when it is back");
  absl::StatusOr<StreamShare> share =
      StreamShare::Enter(context, AccountOf(context, caller, deps_));
  if (!share.ok()) ++deps_.counters.calls_overloaded;
  return share;
}

}  // namespace larder
