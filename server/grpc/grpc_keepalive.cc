#include "server/grpc/grpc_keepalive.h"

#include <pthread.h>

#include <chrono>
#include <optional>
#include <thread>
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
  State(std::string path, std::chrono::milliseconds limit_of_a_call)
      : socket_path(std::move(path)), limit(limit_of_a_call) {}
  ~State() { Close(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void Close();
  // What `thread` runs until Close: a call each time that Ask has set `under_way`.
  void Run();
  // Each makes one call, waits until it ends (at most `limit`, or until Close cancels it), and
  // returns true if the server answered.  Makes none and returns false after Close.
  [[nodiscard]] bool Call(grpc::GenericStub& stub);
  [[nodiscard]] bool CallOverNewConnection();

  const std::string socket_path;  // empty for calls within the process
  const std::chrono::milliseconds limit;
  std::unique_ptr<grpc::GenericStub> within;  // for calls within the process, otherwise null

  mutable Mutex mu;
  CondVar changed;
  std::shared_ptr<grpc::ClientContext> call LARDER_GUARDED_BY(mu);  // the one under way, or null
  std::optional<grpc::Status> result LARDER_GUARDED_BY(mu);         // of the call, once it ended
  bool under_way LARDER_GUARDED_BY(mu) = false;  // from Ask to the end of the call's connection
  bool answered LARDER_GUARDED_BY(mu) = true;
  bool closed LARDER_GUARDED_BY(mu) = false;
  std::thread thread;
};

void GrpcKeepalive::State::Close() {
  std::shared_ptr<grpc::ClientContext> cancelled;
  {
    MutexLock lock(mu);
    closed = true;
    cancelled = call;
    changed.NotifyAll();
  }
  if (cancelled) cancelled->TryCancel();
  if (thread.joinable()) thread.join();
}

void GrpcKeepalive::State::Run() {
  pthread_setname_np(pthread_self(), "self-call");
  for (;;) {
    {
      MutexLock lock(mu);
      while (!under_way && !closed) changed.Wait(mu);
      if (closed) return;
    }
    const bool ok = within ? Call(*within) : CallOverNewConnection();
    MutexLock lock(mu);
    answered = ok;
    under_way = false;
  }
}

// The connection ends here, on this object's thread: if a thread of gRPC destroyed the last
// reference to a channel, it would wait for itself.
bool GrpcKeepalive::State::CallOverNewConnection() {
  grpc::GenericStub stub(ChannelTo(socket_path));
  return Call(stub);
}

bool GrpcKeepalive::State::Call(grpc::GenericStub& stub) {
  const grpc::ByteBuffer request(nullptr, 0);  // an empty HealthCheckRequest: about the server
  grpc::ByteBuffer reply;
  const auto context = std::make_shared<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + limit);
  // If the kernel refuses an attempt to connect, gRPC must try again instead of failing the call.
  context->set_wait_for_ready(true);
  {
    MutexLock lock(mu);
    if (closed) return false;
    call = context;
    result.reset();
  }
  stub.UnaryCall(context.get(), "/grpc.health.v1.Health/Check", {}, &request, &reply,
                 [this](const grpc::Status& status) {
                   MutexLock lock(mu);
                   result = status;
                   changed.NotifyAll();
                 });
  MutexLock lock(mu);
  while (!result) changed.Wait(mu);
  call = nullptr;
  return result->ok();
}

GrpcKeepalive::GrpcKeepalive(const std::string& socket_path, std::chrono::milliseconds limit)
    : state_(std::make_unique<State>(socket_path, limit)) {
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

GrpcKeepalive::GrpcKeepalive(grpc::Server& server, std::chrono::milliseconds limit)
    : state_(std::make_unique<State>("", limit)) {
  state_->within = std::make_unique<grpc::GenericStub>(server.InProcessChannel({}));
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

GrpcKeepalive::~GrpcKeepalive() = default;

void GrpcKeepalive::Ask() {
  MutexLock lock(state_->mu);
  if (state_->closed) return;
  state_->under_way = true;
  state_->changed.NotifyAll();
}

void GrpcKeepalive::Close() { state_->Close(); }

bool GrpcKeepalive::Answered() const {
  MutexLock lock(state_->mu);
  return !state_->under_way && state_->answered;
}

}  // namespace larder
