// Refuses calls of methods that a socket does not serve.
//
// If proto/larder/v1 has the method, the answer is PERMISSION_DENIED and names a socket that serves
// it; otherwise the answer is UNIMPLEMENTED.  No byte of the request is decoded.
// Ownership: GrpcServers owns it; it outlives the server that it is registered with, and the
// counters outlive it.
// Thread-safety: any thread, as gRPC's callback API requires.
#pragma once

#include <string>

#include <grpcpp/generic/async_generic_service.h>

#include "server/grpc/method_table.h"
#include "server/metrics/counters.h"

namespace larder {

class WrongSocket final : public grpc::CallbackGenericService {
 public:
  // `folder` is the directory of the socket files.
  WrongSocket(Socket here, std::string folder, Counters& counters)
      : here_(here), folder_(std::move(folder)), counters_(counters) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  [[nodiscard]] grpc::Status Answer(const std::string& path) const;

  const Socket here_;
  const std::string folder_;
  Counters& counters_;
};

}  // namespace larder
