// absl::Status to the RPC status, the one error channel of a call.
#pragma once

#include <string>

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace larder {

// The codes have equal numbers in both.
[[nodiscard]] inline grpc::Status ToRpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace larder
