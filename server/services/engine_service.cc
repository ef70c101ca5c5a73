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

// Memory that one byte stream may take beside the pool: a message in each direction and gRPC's copy
// of it.
constexpr ByteCount kStreamBytes = MiB(4);

// Ends a call before it began.
template <class Base>
class Refused final : public Base {
 public:
  explicit Refused(const absl::Status& status) { this->Finish(ToRpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerBidiReactor<v1::Up, v1::Down>* EngineService::Attach(
    grpc::CallbackServerContext* context) {
  using Base = grpc::ServerBidiReactor<v1::Up, v1::Down>;
  absl::StatusOr<std::optional<AttachedProcess>> caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new Refused<Base>(caller.status());
  if (sessions_.draining()) {
    return new Refused<Base>(
        absl::UnavailableError("larderd is draining: attach again when it is back"));
  }
  std::string peer =
      *caller ? absl::StrCat("uid ", (*caller)->uid, " pid ", (*caller)->pid) : context->peer();
  auto* stream = new AttachStream(*context, deps_, sessions_);
  stream->Start(*std::move(caller), std::move(peer));
  return stream;
}

grpc::ServerReadReactor<v1::StoreBlocksRequest>* EngineService::StoreBlocks(
    grpc::CallbackServerContext* context, v1::StoreBlocksReply* reply) {
  using Base = grpc::ServerReadReactor<v1::StoreBlocksRequest>;
  ++deps_.counters.requests_store_blocks;
  auto caller = CallerOf(*context, deps_.processes);
  if (!caller.ok()) return new Refused<Base>(caller.status());
  Admission::Answer answer = admission_.EnterBytes(kStreamBytes);
  if (!answer.admitted()) {
    ++deps_.counters.calls_overloaded;
    return new Refused<Base>(Overloaded(*context, answer.retry_after, "too many byte streams"));
  }
  return new StoreStream(*context, deps_, reply, std::move(answer.ticket));
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
  Admission::Answer answer = admission_.EnterBytes(kStreamBytes);
  if (!answer.admitted()) {
    ++deps_.counters.calls_overloaded;
    return new Refused<Base>(Overloaded(*context, answer.retry_after, "too many byte streams"));
  }
  return new FetchStream(*context,
                         BlockSender(deps_, std::move(query.variant), std::move(query.digests),
                                     query.first_layer, query.layers),
                         std::move(answer.ticket));
}

}  // namespace larder
