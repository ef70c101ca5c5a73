#include "bench/harness/echo.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "bench/harness/echo.grpc.pb.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr int kMessageBytesMax = 16 << 20;
constexpr std::string_view kServeFlag = "--serve-echo=";

class StreamReactor final : public grpc::ServerBidiReactor<Ping, Pong> {
 public:
  StreamReactor() { StartRead(&ping_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    pong_.mutable_data()->resize(ping_.pong_bytes());
    StartWrite(&pong_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&ping_);
  }
  void OnDone() override { delete this; }

 private:
  Ping ping_;
  Pong pong_;
};

class EchoService final : public Echo::CallbackService {
 public:
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const Ping* ping,
                                 Pong* pong) override {
    pong->mutable_data()->resize(ping->pong_bytes());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerBidiReactor<Ping, Pong>* Stream(grpc::CallbackServerContext*) override {
    return new StreamReactor;
  }
};

// The length of the data that makes a message `bytes` long; tags and lengths take the rest.
size_t DataBytes(size_t bytes, size_t overhead) { return bytes > overhead ? bytes - overhead : 0; }

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("echo: ", status.error_message()));
}

}  // namespace

struct EchoServer::Parts {
  EchoService service;
  std::unique_ptr<grpc::Server> server;
};

EchoServer::EchoServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
EchoServer::~EchoServer() { parts_->server->Shutdown(std::chrono::system_clock::now()); }

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start(const std::string& socket_path) {
  auto parts = std::make_unique<Parts>();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(absl::StrCat("unix:", socket_path), grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&parts->service);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  parts->server = builder.BuildAndStart();
  if (port == 0) return absl::UnavailableError(absl::StrCat("cannot listen at ", socket_path));
  return std::unique_ptr<EchoServer>(new EchoServer(std::move(parts)));
}

struct EchoClient::Parts {
  std::unique_ptr<Echo::Stub> stub;
  Ping ping;
  Pong pong;
  grpc::ClientContext stream_context;
  std::unique_ptr<grpc::ClientReaderWriter<Ping, Pong>> stream;
};

EchoClient::EchoClient(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
EchoClient::~EchoClient() {
  if (!parts_->stream) return;
  parts_->stream->WritesDone();
  (void)parts_->stream->Finish();
}

absl::StatusOr<std::unique_ptr<EchoClient>> EchoClient::Connect(const std::string& socket_path) {
  auto parts = std::make_unique<Parts>();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  const auto channel = grpc::CreateCustomChannel(absl::StrCat("unix:", socket_path),
                                                 grpc::InsecureChannelCredentials(), arguments);
  parts->stub = Echo::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  LARDER_RETURN_IF_ERROR(ToStatus(parts->stub->Call(&context, parts->ping, &parts->pong)));
  return std::unique_ptr<EchoClient>(new EchoClient(std::move(parts)));
}

void EchoClient::SetSizes(size_t ping_bytes, size_t pong_bytes) {
  // A Ping's tags and numbers take up to 8 bytes, a Pong's up to 4.
  parts_->ping.set_data(std::string(DataBytes(ping_bytes, 8), 'x'));
  parts_->ping.set_pong_bytes(static_cast<uint32_t>(DataBytes(pong_bytes, 4)));
}

absl::Status EchoClient::Call() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  return ToStatus(parts_->stub->Call(&context, parts_->ping, &parts_->pong));
}

absl::Status EchoClient::StreamPing() {
  if (!parts_->stream) parts_->stream = parts_->stub->Stream(&parts_->stream_context);
  if (parts_->stream->Write(parts_->ping) && parts_->stream->Read(&parts_->pong))
    return absl::OkStatus();
  return absl::UnavailableError("echo: the stream broke");
}

std::string EchoServerFlag(const std::string& socket_path) {
  return std::string(kServeFlag) + socket_path;
}

std::optional<int> MaybeServeEcho(int argc, char** argv) {
  if (argc != 2 || !std::string_view(argv[1]).starts_with(kServeFlag)) return std::nullopt;
  const auto server = EchoServer::Start(std::string(argv[1]).substr(kServeFlag.size()));
  if (!server.ok()) {
    std::fprintf(stderr, "bench: %s\n", server.status().ToString().c_str());
    return 1;
  }
  while (true) pause();
}

}  // namespace larder::bench
