#include "server/services/grpc_server.h"

#include <grpcpp/resource_quota.h>

#include "client/wire/messages.h"

namespace larder {

Served Serve(Socket socket, const ServeOptions& options, Counters& counters,
             const std::vector<grpc::Service*>& services) {
  Served served;
  grpc::ServerBuilder builder;
  for (grpc::Service* service : services) builder.RegisterService(service);
  served.wrong = std::make_unique<WrongSocket>(socket, options.socket_dir, counters);
  builder.RegisterCallbackGenericService(served.wrong.get());
  builder.SetMaxReceiveMessageSize(static_cast<int>(wire::kMessageBytesMax));
  builder.SetMaxSendMessageSize(static_cast<int>(wire::kMessageBytesMax));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleLimit_ms);
  // Of this server alone: three of them have it three times, as the options say.
  grpc::ResourceQuota quota("larderd");
  quota.Resize(options.memory_limit.value());
  if (options.rpc_threads_max > 0) quota.SetMaxThreads(options.rpc_threads_max);
  builder.SetResourceQuota(quota);
  served.server = builder.BuildAndStart();
  return served;
}

}  // namespace larder
