// What a socket answers to a call of a method that it does not serve: which socket does.
//
// PERMISSION_DENIED for a method of the contract, UNIMPLEMENTED for any other, before a byte of the
// request is decoded.
// Ownership: by Daemon; outlives the server that it is registered with; refers to the counters.
// Thread-safety: as gRPC's callback API wants.
#pragma once

#include <string>

#include <grpcpp/generic/async_generic_service.h>

#include "server/grpc/method_table.h"
#include "server/metrics/counters.h"

namespace larder {

class WrongSocket final : public grpc::CallbackGenericService {
 public:
  // `folder`: where the socket files are.
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
