// Where a daemon's gRPC socket is, and how often failed calls are retried.
#pragma once

#include <string>

namespace larder {

struct RpcOptions {
  std::string socket_path;
  double retry_budget = 0.1;  // retries that each call adds to the budget; 0: no retries
  int retries_max = 3;        // of one call
};

}  // namespace larder
