#include "server/services/engine_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/convert/convert.h"
#include "server/services/attach_stream.h"
#include "server/services/byte_streams.h"
#include "server/services/caller.h"
#include "server/services/refused_call.h"

namespace larder {

// Replaces the handlers that parse messages first, as the generated WithRawCallbackMethod_Attach
// does; that class cannot be combined with a base class that has the parsing handler.
EngineService::EngineService(SessionDeps& deps, SessionTable& sessions)
    : ChargedAt(Socket::kData, deps, deps.workers), deps_(deps), sessions_(sessions) {
  using grpc::ByteBuffer;
  using Api = v1::Engine;
  MarkMethodRawCallback(
      EngineMethods::IndexOf<Api::WithCallbackMethod_Attach>(),
      new grpc::internal::CallbackBidiHandler<ByteBuffer, ByteBuffer>(
          [this](grpc::CallbackServerContext* context) { return AttachRaw(context); }));
  MarkMethodRawCallback(
      EngineMethods::IndexOf<Api::WithCallbackMethod_StoreBlocks>(),
      new grpc::internal::CallbackClientStreamingHandler<ByteBuffer, v1::StoreBlocksReply>(
          [this](grpc::CallbackServerContext* context, v1::StoreBlocksReply* reply) {
            return StoreRaw(context, reply);
          }));
  // The digests of as many blocks as one request may have, plus its other fields.
  constexpr size_t kFetchRequestMax = wire::kKeysMax * sizeof(Digest) + (64 << 10);
  Charge<Api::WithCallbackMethod_FetchBlocks>(&EngineService::FetchBlocks, kFetchRequestMax);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* EngineService::AttachRaw(
    grpc::CallbackServerContext* context) {
  using Base = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  absl::StatusOr<std::optional<AttachedProcess>> caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new RefusedCall<Base>(caller.status());
  if (sessions_.draining()) {
    return new RefusedCall<Base>(
        absl::UnavailableError("larderd is draining: attach again when it is back"));
  }
  std::string peer =
      *caller ? absl::StrCat("uid ", (*caller)->uid, " pid ", (*caller)->pid) : context->peer();
  auto* stream = new AttachStream(*context, deps_, sessions_);
  const ShareHolder holder = AccountOf(*context, *caller, deps_).holder();
  stream->Start(*std::move(caller), holder, std::move(peer));
  return stream;
}

grpc::ServerReadReactor<grpc::ByteBuffer>* EngineService::StoreRaw(
    grpc::CallbackServerContext* context, v1::StoreBlocksReply* reply) {
  using Base = grpc::ServerReadReactor<grpc::ByteBuffer>;
  ++deps_.counters.requests_store_blocks;
  auto caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new RefusedCall<Base>(caller.status());
  absl::StatusOr<StreamShare> share = EnterStream(*context, *caller);
  if (!share.ok()) return new RefusedCall<Base>(share.status());
  return new StoreStream(*context, deps_, reply, *std::move(share));
}

grpc::ServerWriteReactor<v1::FetchBlocksReply>* EngineService::FetchBlocks(
    grpc::CallbackServerContext* context, const v1::FetchBlocksRequest* request) {
  using Base = grpc::ServerWriteReactor<v1::FetchBlocksReply>;
  ++deps_.counters.requests_fetch_blocks;
  auto caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new RefusedCall<Base>(caller.status());
  wire::FetchBlocksQuery query;
  absl::Status status = wire::Decode(*request, &query);
  if (status.ok()) status = CheckTenant(query.tenant, deps_.tenant);
  if (!status.ok()) {
    ++deps_.counters.invalid_messages;
    return new RefusedCall<Base>(status);
  }
  absl::StatusOr<StreamShare> share = EnterStream(*context, *caller);
  if (!share.ok()) return new RefusedCall<Base>(share.status());
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
