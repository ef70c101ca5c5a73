// Where a daemon's gRPC is, and how often what it refuses is tried again.  Values.
#pragma once

#include <string>

namespace larder {

struct RpcOptions {
  std::string socket_path;
  double retry_budget = 0.1;  // of all calls, that may be retries
  int retries_max = 3;        // of one
};

}  // namespace larder
