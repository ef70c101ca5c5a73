// A gRPC call, given by the name of its method and the bytes of its request, whose every step the
// test takes: an answer that the test does not read stays unread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

namespace larder::e2e {

// Returns a channel whose gRPC accepts at most 64 KiB of an answer before the caller reads.
inline std::shared_ptr<grpc::Channel> ChannelThatTakesLittle(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
}

class OpenCall {
 public:
  struct Options {
    bool await_sent = true;  // the constructor waits until the whole request is sent
    bool gzip = false;
    std::string token = {};  // hex; empty: none
  };
  OpenCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
           const std::string& request)
      : OpenCall(channel, method, grpc::Slice(request), Options()) {}
  OpenCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
           const grpc::Slice& request, const Options& options)
      : stub_(channel), sending_(!options.await_sent) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    if (options.gzip) context_.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    if (!options.token.empty()) context_.AddMetadata("larder-token", options.token);
    call_ = stub_.PrepareCall(&context_, method, &done_);
    call_->StartCall(nullptr);
    (void)Next();
    call_->WriteLast(grpc::ByteBuffer(&request, 1), grpc::WriteOptions(), nullptr);
    if (!sending_) (void)Next();
  }
  ~OpenCall() {
    context_.TryCancel();
    if (!ended_) (void)End();
    done_.Shutdown();
    (void)Next();
  }
  // Reads the rest of the answer and returns the status.
  grpc::Status End() {
    ended_ = true;
    if (sending_) (void)Next();
    grpc::ByteBuffer reply;
    do {
      call_->Read(&reply, nullptr);
    } while (Next());
    grpc::Status status;
    call_->Finish(&status, nullptr);
    (void)Next();
    return status;
  }
  [[nodiscard]] bool SaysWhenToComeBack() const {
    return context_.GetServerTrailingMetadata().contains("larder-retry-after-ms");
  }

 private:
  [[nodiscard]] bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return done_.Next(&tag, &ok) && ok;
  }
  grpc::CompletionQueue done_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  const bool sending_;
  bool ended_ = false;
};

}  // namespace larder::e2e
