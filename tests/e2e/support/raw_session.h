// A session without the client library: it sends exactly the messages that a test gives it, right
// or wrong, over gRPC or on a session socket.
//
//   RawSession session(channel, {.token = sideband->TokenHex(), .mode = v1::WRITE_MODE_MAPPED});
//   v1::Down down = session.Ask(up);   // sends, and waits for the next message
//
// Ownership: the stream, which the destructor breaks off as a failed client would.
// Thread-safety: one writer and one reader at a time.
// Limits: a stream lasts at most kRawSessionLimit, so that no test hangs.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "larder/v1/engine.grpc.pb.h"
#include "proto/frames/file_descriptor.h"
#include "proto/frames/session_frames.h"
#include "proto/messages/messages.h"

namespace larder::e2e {

inline constexpr std::chrono::seconds kRawSessionLimit{60};

// The carrier of a session: a gRPC call or a session socket.
class RawStream {
 public:
  virtual ~RawStream() = default;
  virtual bool Write(const v1::Up& up) = 0;  // false: the stream has ended
  virtual bool Read(v1::Down* down) = 0;     // false: the stream has ended
  virtual void WritesDone() = 0;
  virtual void Cancel() = 0;
  // How the daemon ended the stream.  REQUIRES: Read has returned false.
  struct End {
    grpc::Status status;
    int retry_after_ms = 0;
  };
  virtual End Finish() = 0;
};

class RawCall final : public RawStream {
 public:
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& token)
      : stub_(v1::Engine::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + kRawSessionLimit);
    if (!token.empty()) context_.AddMetadata("larder-token", token);
    stream_ = stub_->Attach(&context_);
  }
  ~RawCall() override {
    if (finished_) return;
    context_.TryCancel();
    static_cast<void>(stream_->Finish());
  }
  bool Write(const v1::Up& up) override { return stream_->Write(up); }
  bool Read(v1::Down* down) override { return stream_->Read(down); }
  void WritesDone() override { stream_->WritesDone(); }
  void Cancel() override { context_.TryCancel(); }
  End Finish() override {
    finished_ = true;
    const grpc::Status status = stream_->Finish();
    const auto& trailer = context_.GetServerTrailingMetadata();
    const auto found = trailer.find("larder-retry-after-ms");
    if (found == trailer.end()) return {status};
    return {status, std::stoi(std::string(found->second.data(), found->second.size()))};
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Engine::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream_;
  bool finished_ = false;
};

class RawSocket final : public RawStream {
 public:
  explicit RawSocket(FileDescriptor socket) : socket_(std::move(socket)) {
    const timeval limit{.tv_sec = kRawSessionLimit.count(), .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  bool Write(const v1::Up& up) override {
    const auto header = EncodeSessionFrameHeader(SessionFrameType::kMessage, up.ByteSizeLong());
    return WriteBytes(std::string(header.data(), header.size()) + up.SerializeAsString());
  }
  // Sends any bytes, whether or not they are frames.
  bool WriteBytes(const std::string& bytes) const {
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t sent = send(socket_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }
  bool Read(v1::Down* down) override {
    for (;;) {
      const auto frame = reader_.Next();
      if (!frame.ok()) return false;
      if (frame->has_value()) {
        const auto& [type, body] = **frame;
        const int size = static_cast<int>(body.size());
        if (type == SessionFrameType::kMessage) return down->ParseFromArray(body.data(), size);
        ended_ = end_.ParseFromArray(body.data(), size);
        return false;
      }
      const std::span<std::byte> room = reader_.Room();
      const ssize_t got = recv(socket_.get(), room.data(), room.size(), 0);
      if (got <= 0) return false;
      reader_.Take(static_cast<size_t>(got));
    }
  }
  void WritesDone() override { shutdown(socket_.get(), SHUT_WR); }
  void Cancel() override { shutdown(socket_.get(), SHUT_RDWR); }
  End Finish() override {
    if (!ended_) return {grpc::Status(grpc::StatusCode::UNKNOWN, "the daemon sent no END frame")};
    return {grpc::Status(static_cast<grpc::StatusCode>(end_.code()), end_.message()),
            static_cast<int>(end_.retry_after_ms())};
  }

 private:
  const FileDescriptor socket_;
  SessionFrameReader reader_{wire::kMessageBytesMax};
  bool ended_ = false;
  v1::SessionEnd end_;
};

class RawSession {
 public:
  struct Options {
    std::string token = {};  // hex; empty: none
    std::string engine_id = "raw";
    v1::WriteMode mode = v1::WRITE_MODE_STREAM;
    bool hello = true;  // the constructor sends Hello and waits for the answer
    uint64_t feature_bits = v1::FEATURE_BIT_TIERS | v1::FEATURE_BIT_COPIED_READS;
  };
  RawSession(const std::shared_ptr<grpc::Channel>& channel, const Options& options)
      : RawSession(std::make_unique<RawCall>(channel, options.token), options) {}
  RawSession(std::unique_ptr<RawStream> stream, const Options& options)
      : stream_(std::move(stream)) {
    if (!options.hello) return;
    v1::Up up;
    v1::Hello* hello = up.mutable_hello();
    hello->set_engine_id(options.engine_id);
    hello->set_role(v1::ROLE_BOTH);
    hello->set_write_mode(options.mode);
    hello->set_feature_bits(options.feature_bits);
    const std::optional<v1::Down> down = Ask(up);
    if (down) attached_ = down->attached();
  }
  RawSession(const RawSession&) = delete;
  RawSession& operator=(const RawSession&) = delete;

  // Returns false if the stream has ended.
  bool Send(const v1::Up& up) { return stream_->Write(up); }
  // Returns nullopt if the stream has ended.
  [[nodiscard]] std::optional<v1::Down> Receive() {
    v1::Down down;
    if (!stream_->Read(&down)) return std::nullopt;
    return down;
  }
  // Sends a message and receives the next one.  It receives even if the send fails: a stream that
  // the daemon has ended may still have messages to read.
  [[nodiscard]] std::optional<v1::Down> Ask(const v1::Up& up) {
    static_cast<void>(Send(up));
    return Receive();
  }
  // Bye sends `bye`, half-closes the stream and returns how the daemon ends it.  End waits until
  // the daemon ends the stream by itself.
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
    end_ = stream_->Finish();
    return end_.status;
  }
  void Cancel() { stream_->Cancel(); }

  // Empty if the daemon did not attach the session.
  [[nodiscard]] const v1::Attached& attached() const { return attached_; }
  // The daemon's hint after the end of the stream; 0: none.
  [[nodiscard]] int retry_after_ms() const { return end_.retry_after_ms; }

 private:
  std::unique_ptr<RawStream> stream_;
  v1::Attached attached_;
  RawStream::End end_;
};

}  // namespace larder::e2e
