#include "server/grpc/grpc_keepalive.h"

#include <chrono>
#include <optional>
#include <utility>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "storage/mutex.h"

namespace larder {
namespace {

// The time between attempts to connect, the least that gRPC allows.  The kernel may refuse an
// attempt while other processes connect faster than the daemon accepts.
constexpr int kReconnect_ms = 100;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnect_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnect_ms);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket_path),
                                   grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

struct GrpcKeepalive::State {
  const grpc::ByteBuffer request{nullptr, 0};  // an empty HealthCheckRequest asks about the server
  grpc::ByteBuffer reply;                      // used by the call while one is under way

  Mutex mu;
  CondVar ended;
  std::unique_ptr<grpc::GenericStub> stub LARDER_GUARDED_BY(mu);  // unchanged during a call
  std::optional<grpc::ClientContext> context LARDER_GUARDED_BY(mu);
  bool under_way LARDER_GUARDED_BY(mu) = false;
  bool answered LARDER_GUARDED_BY(mu) = true;
  bool closed LARDER_GUARDED_BY(mu) = false;
};

GrpcKeepalive::GrpcKeepalive(const std::string& socket_path, std::chrono::milliseconds limit)
    : socket_path_(socket_path), limit_(limit), state_(std::make_unique<State>()) {}

GrpcKeepalive::GrpcKeepalive(grpc::Server& server, std::chrono::milliseconds limit)
    : limit_(limit), state_(std::make_unique<State>()) {
  MutexLock lock(state_->mu);
  state_->stub = std::make_unique<grpc::GenericStub>(server.InProcessChannel({}));
}

GrpcKeepalive::~GrpcKeepalive() { Close(); }

void GrpcKeepalive::Ask() {
  grpc::ClientContext* context = nullptr;
  grpc::GenericStub* stub = nullptr;
  {
    MutexLock lock(state_->mu);
    if (state_->closed || std::exchange(state_->under_way, true)) return;
    context = &state_->context.emplace();
    if (state_->stub == nullptr)
      state_->stub = std::make_unique<grpc::GenericStub>(ChannelTo(socket_path_));
    stub = state_->stub.get();
  }
  context->set_deadline(std::chrono::system_clock::now() + limit_);
  // If the kernel refuses an attempt to connect, gRPC must try again instead of failing the call.
  context->set_wait_for_ready(true);
  stub->UnaryCall(context, "/grpc.health.v1.Health/Check", {}, &state_->request, &state_->reply,
                  [state = state_.get()](const grpc::Status& status) {
                    MutexLock lock(state->mu);
                    state->under_way = false;
                    state->answered = status.ok();
                    state->ended.NotifyAll();
                  });
}

void GrpcKeepalive::HangUp() {
  std::unique_ptr<grpc::GenericStub> ended;
  MutexLock lock(state_->mu);
  if (state_->under_way || socket_path_.empty()) return;
  state_->context.reset();  // the context holds the channel, too
  ended = std::move(state_->stub);
}

void GrpcKeepalive::Close() {
  MutexLock lock(state_->mu);
  state_->closed = true;
  if (state_->under_way) state_->context->TryCancel();
  while (state_->under_way) state_->ended.Wait(state_->mu);
}

bool GrpcKeepalive::Answered() const {
  MutexLock lock(state_->mu);
  return !state_->under_way && state_->answered;
}

}  // namespace larder
