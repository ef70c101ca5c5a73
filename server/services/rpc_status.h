// Converts absl::Status to the status of an RPC, by which a call reports its error.
#pragma once

#include <string>

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace larder {

// Codes have the same numbers in both.
[[nodiscard]] inline grpc::Status ToRpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace larder
