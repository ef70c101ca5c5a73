// The daemon's Admin service, over the socket file for operators (admin.sock).
//
// client/rpc/rpc_channel.h says how calls are retried.  A call that `limits.cancel` cancels returns
// Cancelled.
// Ownership: Owns its channel.
// Thread-safety: All methods may be called from any thread.
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
  // Connects with the first call.
  explicit AdminStub(const RpcOptions& options);
  ~AdminStub();
  AdminStub(const AdminStub&) = delete;
  AdminStub& operator=(const AdminStub&) = delete;

  // Returns Unavailable, with the path, if there is no connection to a daemon by the deadline.
  [[nodiscard]] absl::Status WaitConnected(std::chrono::milliseconds deadline);

  [[nodiscard]] absl::StatusOr<wire::NodeStats> Stats(const CallLimits& limits);
  // Returns TOML, as larderd --print-config prints it.
  [[nodiscard]] absl::StatusOr<std::string> Config(const CallLimits& limits);
  // Returns how many sessions were asked to finish.  `limit` is how long the daemon waits for
  // sessions and calls to end; 0 means its default.
  [[nodiscard]] absl::StatusOr<uint32_t> Drain(std::chrono::milliseconds limit,
                                               const CallLimits& limits);
  // `take` gets each answer on the calling thread.  If `take` returns false, the call ends early,
  // with OK.
  [[nodiscard]] absl::Status Verify(const wire::VerifyQuery& query, const CallLimits& limits,
                                    const std::function<bool(const wire::VerifyProgress&)>& take);

 private:
  const std::unique_ptr<RpcChannel> channel_;
};

}  // namespace larder
