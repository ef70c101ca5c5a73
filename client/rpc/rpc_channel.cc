#include "client/rpc/rpc_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/clock.h"

namespace larder {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPauseFirst{10};
constexpr Milliseconds kPauseMax{1000};

// The pause between connection attempts, which does not grow: the daemon is on this host, so a
// failed attempt costs little, and if other clients fill the socket's queue, the next attempt may
// find a slot in it.  100 is gRPC's minimum.
constexpr int kReconnect_ms = 100;
// A busy daemon may take this long to answer on a connection before gRPC tries another.  If no
// daemon listens, the attempt fails at once.
constexpr int kHandshake_ms = 5'000;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection per Client
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnect_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnect_ms);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kHandshake_ms);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(wire::kMessageBytesMax));
  arguments.SetMaxSendMessageSize(static_cast<int>(wire::kMessageBytesMax));
  return grpc::CreateCustomChannel(absl::StrCat("unix:", path), grpc::InsecureChannelCredentials(),
                                   arguments);
}

// Returns the daemon's retry hint, from 0 to 60 s; 0 if there is none.
Milliseconds RetryAfter(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("larder-retry-after-ms");
  int64_t ms = 0;
  if (found == metadata.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &ms)) {
    return Milliseconds(0);
  }
  return Milliseconds(std::clamp<int64_t>(ms, 0, 60'000));
}

}  // namespace

void RetryBudget::OnCall() {
  MutexLock lock(mu_);
  tokens_ = std::min(kTokensMax, tokens_ + per_call_);
}

bool RetryBudget::Take() {
  MutexLock lock(mu_);
  if (per_call_ <= 0 || tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

RpcChannel::RpcChannel(const RpcOptions& options)
    : options_(options),
      channel_(MakeChannel(options.socket_path)),
      budget_(options.retry_budget) {}

absl::Status RpcChannel::WaitConnected(Milliseconds deadline) {
  if (channel_->WaitForConnected(std::chrono::system_clock::now() + deadline))
    return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no larderd answers at ", options_.socket_path,
                                             ": start it, or let this user open the file"));
}

// gRPC makes progress with a connection only while a thread waits in gRPC, and gives up an attempt
// after kHandshake_ms.  So if the process begins to connect and then computes for longer than that,
// the attempt may have failed by the process's first call, which therefore waits for a new attempt.
void RpcChannel::AwaitConnection(Milliseconds at_most) {
  const bool connected = channel_->WaitForConnected(std::chrono::system_clock::now() + at_most);
  MutexLock lock(mu_);
  calls_await_connection_ = !connected;
}

void RpcChannel::Sign(grpc::ClientContext& context) const {
  const auto now = SteadyNow();
  MutexLock lock(mu_);
  if (!token_.empty()) context.AddMetadata("larder-token", token_);
  if (!calls_await_connection_) return;
  if (!first_awaited_) first_awaited_ = now;
  // After kPatience, a call fails at once if there is no connection.
  calls_await_connection_ = now < *first_awaited_ + kPatience &&
                            channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY;
  const bool ends = context.deadline() != std::chrono::system_clock::time_point::max();
  context.set_wait_for_ready(calls_await_connection_ && ends);
}

absl::Status RpcChannel::Call(const CallLimits& limits,
                              const std::function<grpc::Status(grpc::ClientContext&)>& ask) {
  budget_.OnCall();
  const auto end = SteadyNow() + std::min(limits.deadline, Milliseconds(wire::kDeadlineMaxMs));
  Milliseconds pause = kPauseFirst;
  for (int retries = 0;; ++retries) {
    grpc::ClientContext context;
    Sign(context, std::chrono::duration_cast<Milliseconds>(end - SteadyNow()));
    const CallCancel::Scope scope(limits.cancel, [&context] { context.TryCancel(); });
    const absl::Status status = FromRpcStatus(ask(context));
    if (!absl::IsUnavailable(status) && !absl::IsResourceExhausted(status)) return status;
    const Milliseconds wait = std::max(RetryAfter(context), pause);
    if (retries >= options_.retries_max || SteadyNow() + wait >= end || !budget_.Take()) {
      return status;
    }
    if (limits.cancel == nullptr) {
      std::this_thread::sleep_for(wait);
    } else if (!limits.cancel->Sleep(wait)) {
      return absl::CancelledError("the call was cancelled while it waited for a retry");
    }
    pause = std::min(2 * pause, kPauseMax);
  }
}

absl::Status RpcChannel::NotAnAnswer(const absl::Status& why) {
  return absl::InternalError(
      absl::StrCat("the daemon's answer violates the contract: ", why.message()));
}

}  // namespace larder
