// The daemon's Cache service, over one of its socket files: unary calls, and streams whose answers
// are delivered as they arrive.
//
// client/rpc/rpc_channel.h says how calls are retried.  A call that `limits.cancel` cancels returns
// Cancelled.
// Ownership: Shares the channel.
// Thread-safety: All methods may be called from any thread.
// Limits: A message has at most kMessageBytesMax bytes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/rpc/rpc_options.h"
#include "proto/messages/call_limits.h"
#include "proto/messages/messages.h"

namespace larder {

class RpcChannel;  // client/rpc/rpc_channel.h

class RpcStub {
 public:
  using Options = RpcOptions;
  // Connects with the first call.
  explicit RpcStub(const Options& options);
  ~RpcStub();
  RpcStub(const RpcStub&) = delete;
  RpcStub& operator=(const RpcStub&) = delete;

  // Returns Unavailable, with the path, if there is no connection to a daemon by the deadline.
  [[nodiscard]] absl::Status WaitConnected(std::chrono::milliseconds deadline);
  // Calls RpcChannel::AwaitConnection.
  void AwaitConnection(std::chrono::milliseconds at_most);
  // All calls that begin later carry the sideband's token; empty: none.
  void SetToken(std::string token_hex);

  [[nodiscard]] absl::StatusOr<wire::LookupResult> Lookup(const wire::LookupQuery& query,
                                                          const CallLimits& limits);
  // Reads all pages, each with a call of its own to which the limits apply.
  [[nodiscard]] absl::StatusOr<std::vector<wire::InstanceInfo>> ListInstances(
      const std::string& tenant, const CallLimits& limits);
  [[nodiscard]] absl::StatusOr<wire::PinResult> Pin(const wire::PinQuery& query,
                                                    const CallLimits& limits);
  [[nodiscard]] absl::StatusOr<wire::UnpinResult> Unpin(const wire::UnpinQuery& query,
                                                        const CallLimits& limits);
  [[nodiscard]] absl::StatusOr<std::vector<wire::BlockAnswer>> Prefetch(
      const wire::PrefetchQuery& query, const CallLimits& limits);
  [[nodiscard]] absl::StatusOr<wire::ClearResult> Clear(const wire::ClearQuery& query,
                                                        const CallLimits& limits);

  // Move, Compress and Watch call `take` with each answer, on the calling thread.  If `take`
  // returns false, the call ends early, with OK.
  [[nodiscard]] absl::Status Move(const wire::MoveQuery& query, const CallLimits& limits,
                                  const std::function<bool(const wire::MoveProgress&)>& take);
  [[nodiscard]] absl::Status Compress(
      const wire::CompressQuery& query, const CallLimits& limits,
      const std::function<bool(const wire::CompressProgress&)>& take);
  [[nodiscard]] absl::Status Watch(const wire::WatchQuery& query, const CallLimits& limits,
                                   const std::function<bool(const wire::WatchReply&)>& take);

  [[nodiscard]] const std::shared_ptr<RpcChannel>& channel() const { return channel_; }

 private:
  const std::shared_ptr<RpcChannel> channel_;
};

}  // namespace larder
