// An Attach stream without the client library: says exactly what a test tells it to, right or wrong.
//
//   RawSession session(channel, {.token = sideband->TokenHex(), .mode = v1::WRITE_MODE_MAPPED});
//   v1::Down down = session.Ask(up);   // sends, and waits for the next message
//
// Ownership: the call; cancelled when dropped, as a broken client's would be.
// Thread-safety: one writer and one reader at a time.  A call lasts kLimit at most, so no test hangs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <grpcpp/grpcpp.h>

#include "larder/v1/engine.grpc.pb.h"

namespace larder::e2e {

class RawSession {
 public:
  static constexpr std::chrono::seconds kLimit{60};
  struct Options {
    std::string token = {};  // hex; empty: none
    std::string engine_id = "raw";
    v1::WriteMode mode = v1::WRITE_MODE_STREAM;
    bool hello = true;  // sends it and takes `attached`
  };
  RawSession(const std::shared_ptr<grpc::Channel>& channel, const Options& options)
      : stub_(v1::Engine::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + kLimit);
    if (!options.token.empty()) context_.AddMetadata("larder-token", options.token);
    stream_ = stub_->Attach(&context_);
    if (!options.hello) return;
    v1::Up up;
    v1::Hello* hello = up.mutable_hello();
    hello->set_engine_id(options.engine_id);
    hello->set_role(v1::ROLE_BOTH);
    hello->set_write_mode(options.mode);
    const std::optional<v1::Down> down = Ask(up);
    if (down) attached_ = down->attached();
  }
  ~RawSession() {
    if (ended_) return;
    context_.TryCancel();
    static_cast<void>(stream_->Finish());
  }
  RawSession(const RawSession&) = delete;
  RawSession& operator=(const RawSession&) = delete;

  // False: the stream is over.
  bool Send(const v1::Up& up) { return stream_->Write(up); }
  // Nothing: the stream is over.
  [[nodiscard]] std::optional<v1::Down> Receive() {
    v1::Down down;
    if (!stream_->Read(&down)) return std::nullopt;
    return down;
  }
  [[nodiscard]] std::optional<v1::Down> Ask(const v1::Up& up) {
    if (!Send(up)) return std::nullopt;
    return Receive();
  }
  // How the daemon ends the stream, by itself or after `bye` and the half-close.
  grpc::Status Bye() {
    v1::Up up;
    up.set_bye(true);
    Send(up);
    stream_->WritesDone();
    return End();
  }
  grpc::Status End() {
    while (Receive()) {
    }
    ended_ = true;
    return stream_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

  // Empty when the daemon did not attach it.
  [[nodiscard]] const v1::Attached& attached() const { return attached_; }
  // Trailing metadata, once ended.
  [[nodiscard]] std::string Trailer(const std::string& key) const {
    const auto& all = context_.GetServerTrailingMetadata();
    const auto found = all.find(key);
    return found == all.end() ? std::string()
                              : std::string(found->second.data(), found->second.size());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Engine::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream_;
  v1::Attached attached_;
  bool ended_ = false;
};

}  // namespace larder::e2e
