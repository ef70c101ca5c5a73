// The other end of a session socket, played by a test: it writes and reads frames, or any other
// bytes.
//
// It waits while it is the other side's turn, but not forever: a test whose other side hangs fails
// after kPatience.
// Ownership: owns the socket.
// Thread-safety: one thread may write while another one reads.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "proto/frames/file_descriptor.h"
#include "proto/frames/session_codec.h"
#include "proto/frames/session_frames.h"
#include "proto/messages/messages.h"
#include "storage/check.h"

namespace larder::testing {

struct SocketPair {
  SocketPair() {
    int ends[2];
    LARDER_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    ours = FileDescriptor(ends[0]);
    theirs = FileDescriptor(ends[1]);
  }
  FileDescriptor ours;
  FileDescriptor theirs;
};

// Writes Out and reads In: wire::Up and wire::Down for a client, the reverse for a daemon.
template <class Out, class In>
class SessionPeer {
 public:
  static constexpr std::chrono::seconds kPatience{30};

  explicit SessionPeer(FileDescriptor socket) : socket_(std::move(socket)) {
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    LARDER_CHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) ==
                 0);
    LARDER_CHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) ==
                 0);
  }

  // Returns false if the other side no longer takes bytes.
  bool SendBytes(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  bool Send(const Out& message) { return SendBytes(Frame(message)); }
  bool SendEnd(const SessionEnd& end) {
    std::string bytes;
    SessionCodec::AppendEnd(end, &bytes);
    return SendBytes(bytes);
  }
  // Sends as much as possible without waiting.  Returns the rest.
  [[nodiscard]] std::string_view SendSome(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent =
          send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) break;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return bytes;
  }
  [[nodiscard]] std::string Frame(const Out& message) {
    std::string bytes;
    codecs_->out.Append(message, &bytes);
    return bytes;
  }

  void HalfClose() { shutdown(socket_.get(), SHUT_WR); }
  void Break() { socket_ = FileDescriptor(); }
  [[nodiscard]] int socket() const { return socket_.get(); }

  // What comes next: a message, an end, or neither if the other side has closed.
  struct Event {
    std::optional<In> message;
    std::optional<SessionEnd> end;
    bool silent = false;  // for so long that the test has failed
    [[nodiscard]] bool none() const { return !message && !end && !silent; }
  };
  [[nodiscard]] Event Next() {
    for (;;) {
      const auto frame = reader_.Next();
      EXPECT_TRUE(frame.ok()) << frame.status();
      if (!frame.ok()) return {};
      if (frame->has_value()) return Parsed(**frame);
      if (const ssize_t received = Receive(); received <= 0) {
        return {.message = {}, .end = {}, .silent = received < 0 && errno == EAGAIN};
      }
    }
  }
  // Returns the next message, or an empty one in a test that has failed already.
  [[nodiscard]] In NextMessage() {
    Event event = Next();
    EXPECT_TRUE(event.message.has_value()) << (event.end ? event.end->status.ToString() : "none");
    return event.message ? *std::move(event.message) : In{};
  }
  // Skips the messages before the END.  Returns nullopt if there is none.
  [[nodiscard]] std::optional<SessionEnd> NextEnd() {
    for (;;) {
      Event event = Next();
      if (!event.message) return std::move(event.end);
    }
  }
  // Discards available bytes, so that the other side can write again.  Returns their number.
  // REQUIRES: Next is not called afterwards.
  size_t Discard(size_t most) {
    std::string bytes(most, '\0');
    const ssize_t received = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    return received > 0 ? static_cast<size_t>(received) : 0;
  }

 private:
  struct Codecs {
    SessionCodec out;
    SessionCodec in;
  };
  ssize_t Receive() {
    const std::span<std::byte> room = reader_.Room();
    const ssize_t received = recv(socket_.get(), room.data(), room.size(), 0);
    if (received > 0) reader_.Take(static_cast<size_t>(received));
    return received;
  }
  Event Parsed(const SessionFrame& frame) {
    Event event;
    if (frame.type == SessionFrameType::kEnd) {
      const absl::StatusOr<SessionEnd> end = SessionCodec::ParseEnd(frame.body);
      EXPECT_TRUE(end.ok()) << end.status();
      if (end.ok()) event.end = *end;
    } else {
      const absl::Status status = codecs_->in.Parse(frame.body, &event.message.emplace());
      EXPECT_TRUE(status.ok()) << status;
    }
    return event;
  }

  FileDescriptor socket_;
  std::unique_ptr<Codecs> codecs_ = std::make_unique<Codecs>();
  SessionFrameReader reader_{wire::kMessageBytesMax};
};

}  // namespace larder::testing
