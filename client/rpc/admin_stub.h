// The daemon's Admin, over the operator's socket file.
//
// As RpcStub, which is the same for Cache.
// Ownership: owns its channel.  Thread-safety: all methods from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/rpc/rpc_options.h"
#include "proto/messages/admin_messages.h"
#include "proto/messages/call_limits.h"

namespace larder {

class RpcChannel;  // client/rpc/rpc_channel.h

class AdminStub {
 public:
  // Connects when first used.
  explicit AdminStub(const RpcOptions& options);
  ~AdminStub();
  AdminStub(const AdminStub&) = delete;
  AdminStub& operator=(const AdminStub&) = delete;

  // Unavailable, with the path, when there is no daemon by then.
  [[nodiscard]] absl::Status WaitConnected(std::chrono::milliseconds deadline);

  [[nodiscard]] absl::StatusOr<wire::NodeStats> Stats(const CallLimits& limits);
  // TOML, as larderd --print-config prints it.
  [[nodiscard]] absl::StatusOr<std::string> Config(const CallLimits& limits);
  // Answers how many sessions were told; `limit` is the daemon's, for what is under way.
  [[nodiscard]] absl::StatusOr<uint32_t> Drain(std::chrono::milliseconds limit,
                                               const CallLimits& limits);
  // `take` hears each answer on the calling thread; false: it has enough, and the call ends OK.
  [[nodiscard]] absl::Status Verify(const wire::VerifyQuery& query, const CallLimits& limits,
                                    const std::function<bool(const wire::VerifyProgress&)>& take);

 private:
  const std::unique_ptr<RpcChannel> channel_;
};

}  // namespace larder
