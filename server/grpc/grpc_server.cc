#include "server/grpc/grpc_server.h"

#include <algorithm>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/resource_quota.h>

#include "proto/messages/messages.h"
#include "storage/check.h"

namespace larder {
namespace {

// Returns gRPC's memory quota for one server.  Beyond it gRPC ends calls of any client of this
// server, without telling why.  This should be rare, because IncomingMessages usually ends
// connections earlier.
ByteCount Quota(ByteCount memory_limit) { return ByteCount(memory_limit.value() / 2); }

// Removes gRPC's reflection, which every server has if the program is linked with the reflection
// library.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& plugin) {
      return dynamic_cast<grpc::reflection::ProtoServerReflectionPlugin*>(plugin.get()) != nullptr;
    });
  }
};

}  // namespace

std::unique_ptr<GrpcServers> GrpcServers::Start(Socket socket, size_t servers,
                                                const Options& options, Counters& counters,
                                                const std::vector<grpc::Service*>& services) {
  auto started = std::make_unique<GrpcServers>();
  for (size_t i = 0; i < servers; ++i) {
    Lane lane;
    grpc::ServerBuilder builder;
    for (grpc::Service* service : services) builder.RegisterService(service);
    lane.wrong = std::make_unique<WrongSocket>(socket, options.socket_dir, counters);
    builder.RegisterCallbackGenericService(lane.wrong.get());
    builder.SetMaxReceiveMessageSize(static_cast<int>(wire::kMessageBytesMax));
    builder.SetMaxSendMessageSize(static_cast<int>(wire::kMessageBytesMax));
    // A compressed message of a MiB could become a GiB before a service can refuse it.
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    // Reflection occupies a thread for each of its streams, and keeps what a caller sent there.
    if (socket == Socket::kData) builder.SetOption(std::make_unique<WithoutReflection>());
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleLimit_ms);
    grpc::ResourceQuota quota("larderd");
    quota.Resize(Quota(options.memory_limit).value());
    if (options.rpc_threads_max > 0) quota.SetMaxThreads(options.rpc_threads_max);
    builder.SetResourceQuota(quota);
    lane.server = builder.BuildAndStart();
    if (!lane.server) return nullptr;
    started->lanes_.push_back(std::move(lane));
  }
  return started;
}

grpc::Server& GrpcServers::Enter(uid_t uid) {
  const auto [found, is_new] = users_.try_emplace(uid);
  User& user = found->second;
  if (is_new) {
    const auto fewest = std::ranges::min_element(lanes_, {}, &Lane::users);
    ++fewest->users;
    user.lane = static_cast<size_t>(fewest - lanes_.begin());
  }
  ++user.connections;
  return *lanes_[user.lane].server;
}

void GrpcServers::Leave(uid_t uid) {
  const auto found = users_.find(uid);
  LARDER_CHECK(found != users_.end());
  if (--found->second.connections != 0) return;
  --lanes_[found->second.lane].users;
  users_.erase(found);
}

void GrpcServers::SetServing(bool serves) const {
  for (const Lane& lane : lanes_) {
    if (auto* health = lane.server->GetHealthCheckService()) health->SetServingStatus(serves);
  }
}

void GrpcServers::Shutdown(std::chrono::system_clock::time_point deadline) const {
  for (const Lane& lane : lanes_) lane.server->Shutdown(deadline);
}

void GrpcServers::Wait() const {
  for (const Lane& lane : lanes_) lane.server->Wait();
}

}  // namespace larder
