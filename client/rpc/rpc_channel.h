// What the client's gRPC code shares: the channel to one socket file of the daemon, what every call
// carries, and how calls are made.  Only files that use gRPC include it.
//
// A unary call that fails with Unavailable or ResourceExhausted is retried, up to
// RpcOptions::retries_max times, after the pause that the daemon gave (trailing metadata
// larder-retry-after-ms) or after a growing pause, whichever is longer.  Retries stay within the
// call's deadline and within a budget (RetryBudget), so that a daemon in trouble does not get a
// multiple of its load.  Streams are not retried.
//
// Ownership: Shared by stubs, streams and the byte-stream transport.
// Thread-safety: All methods may be called from any thread.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/rpc/rpc_options.h"
#include "proto/convert/convert.h"
#include "proto/messages/call_limits.h"
#include "proto/messages/messages.h"
#include "storage/mutex.h"
#include "storage/status_macros.h"

namespace larder {

// A budget of tokens, each worth one retry.  It starts full, with kTokensMax, and each call adds
// `per_call` to it until it is full.
class RetryBudget {
 public:
  explicit RetryBudget(double per_call) : per_call_(per_call) {}
  void OnCall() LARDER_EXCLUDES(mu_);
  // Takes one token.  Returns false if the budget has less than one, or if `per_call` is 0.
  [[nodiscard]] bool Take() LARDER_EXCLUDES(mu_);

 private:
  static constexpr double kTokensMax = 10;
  const double per_call_;
  Mutex mu_;
  double tokens_ LARDER_GUARDED_BY(mu_) = kTokensMax;
};

class RpcChannel {
 public:
  static constexpr std::chrono::milliseconds kPatience{5'000};
  // Connects with the first call.
  explicit RpcChannel(const RpcOptions& options);

  [[nodiscard]] const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Returns Unavailable, with the path, if there is no connection to a daemon by the deadline.
  [[nodiscard]] absl::Status WaitConnected(std::chrono::milliseconds deadline);
  // Waits at most this long for the connection.  If it is not established by then, calls that have
  // a deadline wait for it, as long as they begin within kPatience of the first call.
  void AwaitConnection(std::chrono::milliseconds at_most) LARDER_EXCLUDES(mu_);
  // Sets the sideband's token, in hex; empty: none.  All calls that begin later carry it.
  void SetToken(std::string token) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    token_ = std::move(token);
  }
  // Adds the token, and sets whether the call waits for the connection.  REQUIRES: The call has not
  // started.
  void Sign(grpc::ClientContext& context) const LARDER_EXCLUDES(mu_);
  void Sign(grpc::ClientContext& context, std::chrono::milliseconds deadline) const {
    // Clamped so that the sum does not overflow.
    context.set_deadline(std::chrono::system_clock::now() +
                         std::min(deadline, std::chrono::milliseconds(wire::kDeadlineMaxMs)));
    Sign(context);
  }

  // Makes a unary call and its retries: `ask` makes each attempt, with a context of its own.
  // Returns the status of the last attempt, or Cancelled if the call was cancelled between two
  // attempts.
  [[nodiscard]] absl::Status Call(const CallLimits& limits,
                                  const std::function<grpc::Status(grpc::ClientContext&)>& ask);
  // Makes a unary call as Call does, and returns the value of the answer.  Returns Internal if the
  // answer cannot be decoded.
  template <class Value, class Reply>
  [[nodiscard]] absl::StatusOr<Value> Ask(
      const CallLimits& limits,
      const std::function<grpc::Status(grpc::ClientContext&, Reply*)>& ask);
  // Reads a stream of answers, which `start` begins.  `take` gets each answer; if `take` returns
  // false, the call ends early, with OK.  Returns Internal if an answer cannot be decoded.
  template <class Value, class Reply, class Start>
  [[nodiscard]] absl::Status Read(const CallLimits& limits, const Start& start,
                                  const std::function<bool(const Value&)>& take) const;

 private:
  [[nodiscard]] static absl::Status NotAnAnswer(const absl::Status& why);

  const RpcOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  RetryBudget budget_;
  mutable Mutex mu_;
  std::string token_ LARDER_GUARDED_BY(mu_);
  mutable bool calls_await_connection_ LARDER_GUARDED_BY(mu_) = false;
  mutable std::optional<std::chrono::steady_clock::time_point> first_awaited_
      LARDER_GUARDED_BY(mu_);
};

// Both types use the same numbers for codes.
[[nodiscard]] inline absl::Status FromRpcStatus(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

template <class Value, class Reply>
absl::StatusOr<Value> RpcChannel::Ask(
    const CallLimits& limits,
    const std::function<grpc::Status(grpc::ClientContext&, Reply*)>& ask) {
  Reply reply;
  absl::Status status =
      Call(limits, [&](grpc::ClientContext& context) { return ask(context, &reply); });
  LARDER_RETURN_IF_ERROR(status);
  Value value{};
  status = wire::Decode(reply, &value);
  if (!status.ok()) return NotAnAnswer(status);
  return value;
}

template <class Value, class Reply, class Start>
absl::Status RpcChannel::Read(const CallLimits& limits, const Start& start,
                              const std::function<bool(const Value&)>& take) const {
  constexpr std::chrono::hours kLongest{24 * 365};
  grpc::ClientContext context;
  if (limits.deadline != CallLimits::kNoDeadline) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::min<std::chrono::milliseconds>(limits.deadline, kLongest));
  }
  Sign(context);
  const CallCancel::Scope scope(limits.cancel, [&context] { context.TryCancel(); });
  const auto reader = start(context);
  Reply reply;
  Value value{};
  absl::Status status;
  bool more = true;
  while (more && reader->Read(&reply)) {
    status = wire::Decode(reply, &value);
    more = status.ok() && take(value);
  }
  if (!more) context.TryCancel();
  const absl::Status end = FromRpcStatus(reader->Finish());
  if (!status.ok()) return NotAnAnswer(status);
  return more ? end : absl::OkStatus();
}

}  // namespace larder
