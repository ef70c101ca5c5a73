// The daemon's unary calls, over its socket file.
//
// Unavailable and ResourceExhausted are tried again, after the daemon's hint (trailing metadata
// larder-retry-after-ms), else after a growing pause; within the call's deadline, and within a
// budget: each call earns a fraction of a retry, so that a daemon in trouble does not get a
// multiple of its load.
//
// Ownership: shares the channel.  Thread-safety: all methods from any thread.
// Limits: messages of kMessageBytesMax.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/wire/messages.h"
#include "storage/mutex.h"

namespace larder {

class RpcChannel;  // client/wire/rpc_channel.h

// Tokens are retries.  Starts full.
class RetryBudget {
 public:
  explicit RetryBudget(double per_call) : per_call_(per_call) {}
  void OnCall() LARDER_EXCLUDES(mu_);
  // False: spent.
  [[nodiscard]] bool Take() LARDER_EXCLUDES(mu_);

 private:
  static constexpr double kTokensMax = 10;
  const double per_call_;
  Mutex mu_;
  double tokens_ LARDER_GUARDED_BY(mu_) = kTokensMax;
};

class RpcStub {
 public:
  struct Options {
    std::string socket_path;
    double retry_budget = 0.1;
    int retries_max = 3;
  };
  // Connects when first used.
  explicit RpcStub(const Options& options);
  ~RpcStub();
  RpcStub(const RpcStub&) = delete;
  RpcStub& operator=(const RpcStub&) = delete;

  // Unavailable, with the path, when there is no daemon by then.
  [[nodiscard]] absl::Status WaitConnected(std::chrono::milliseconds deadline);
  // Goes with all calls that begin later.
  void SetToken(std::string token_hex);
  [[nodiscard]] absl::StatusOr<wire::LookupResult> Lookup(const wire::LookupQuery& query,
                                                          std::chrono::milliseconds deadline);
  [[nodiscard]] absl::StatusOr<std::vector<wire::InstanceInfo>> ListInstances(
      const std::string& tenant, std::chrono::milliseconds deadline);
  [[nodiscard]] const std::shared_ptr<RpcChannel>& channel() const { return channel_; }

 private:
  template <class Call>
  [[nodiscard]] absl::Status WithRetries(std::chrono::milliseconds deadline, const Call& call);

  const Options options_;
  const std::shared_ptr<RpcChannel> channel_;
  RetryBudget budget_;
};

}  // namespace larder
