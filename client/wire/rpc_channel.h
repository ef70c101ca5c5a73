// What the client's gRPC code shares: the channel, and what goes with every call.  Only for files
// that see gRPC.
//
// Ownership: shared by stub, streams and the byte-stream transport.  Thread-safety: all methods
// from any thread.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/wire/messages.h"
#include "storage/mutex.h"

namespace larder {

class RpcChannel {
 public:
  explicit RpcChannel(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  [[nodiscard]] const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Of the sideband, as hex; empty: none.
  void SetToken(std::string token) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    token_ = std::move(token);
  }
  // Adds the token.  REQUIRES: before the call starts.
  void Sign(grpc::ClientContext& context) const LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!token_.empty()) context.AddMetadata("larder-token", token_);
  }
  void Sign(grpc::ClientContext& context, std::chrono::milliseconds deadline) const {
    // Clamped, so that the sum does not overflow.
    context.set_deadline(std::chrono::system_clock::now() +
                         std::min(deadline, std::chrono::milliseconds(wire::kDeadlineMaxMs)));
    Sign(context);
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  mutable Mutex mu_;
  std::string token_ LARDER_GUARDED_BY(mu_);
};

// The codes have equal numbers in both.
[[nodiscard]] inline absl::Status FromRpcStatus(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace larder
