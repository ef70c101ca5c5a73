#include "client/rpc/admin_stub.h"

#include "client/rpc/rpc_channel.h"
#include "larder/v1/admin.grpc.pb.h"
#include "proto/convert/convert.h"
#include "storage/status_macros.h"

namespace larder {

AdminStub::AdminStub(const RpcOptions& options) : channel_(std::make_unique<RpcChannel>(options)) {}

AdminStub::~AdminStub() = default;

absl::Status AdminStub::WaitConnected(std::chrono::milliseconds deadline) {
  return channel_->WaitConnected(deadline);
}

absl::StatusOr<wire::NodeStats> AdminStub::Stats(const CallLimits& limits) {
  const auto stub = v1::Admin::NewStub(channel_->channel());
  return channel_->Ask<wire::NodeStats, v1::StatsReply>(
      limits, [&](grpc::ClientContext& context, v1::StatsReply* reply) {
        return stub->Stats(&context, {}, reply);
      });
}

absl::StatusOr<std::string> AdminStub::Config(const CallLimits& limits) {
  const auto stub = v1::Admin::NewStub(channel_->channel());
  return channel_->Ask<std::string, v1::ConfigReply>(
      limits, [&](grpc::ClientContext& context, v1::ConfigReply* reply) {
        return stub->Config(&context, {}, reply);
      });
}

absl::StatusOr<uint32_t> AdminStub::Drain(std::chrono::milliseconds limit,
                                          const CallLimits& limits) {
  const auto stub = v1::Admin::NewStub(channel_->channel());
  v1::DrainRequest request;
  request.set_limit_s(std::chrono::duration<double>(limit).count());
  v1::DrainReply reply;
  LARDER_RETURN_IF_ERROR(channel_->Call(limits, [&](grpc::ClientContext& context) {
    return stub->Drain(&context, request, &reply);
  }));
  return reply.sessions();
}

absl::Status AdminStub::Verify(const wire::VerifyQuery& query, const CallLimits& limits,
                               const std::function<bool(const wire::VerifyProgress&)>& take) {
  const auto stub = v1::Admin::NewStub(channel_->channel());
  v1::VerifyRequest request;
  wire::Encode(query, &request);
  return channel_->Read<wire::VerifyProgress, v1::VerifyProgress>(
      limits, [&](grpc::ClientContext& context) { return stub->Verify(&context, request); }, take);
}

}  // namespace larder
