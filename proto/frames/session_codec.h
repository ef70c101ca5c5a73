// Converts the messages of a session to frames of a session socket and back, so that code which
// sends and receives frames needs no generated code.
//
// Append checks nothing.  Parse treats its input as hostile; convert.h says what is refused.
// Ownership: a SessionCodec keeps generated messages and reuses their memory.  Clearing a generated
// message frees little of its memory, so the memory of many messages of different shapes adds up.
// So Append frees the kept Down, and Release the kept Up, once it may take more than kKeptBytes.
// At the client's end these messages are kept until this object is destroyed.
// Thread-safety: none; if one thread sends and another receives, each uses an object of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/messages.h"

namespace larder {

// How a session ended.  Over gRPC, the status and trailing metadata of the call say the same.
struct SessionEnd {
  absl::Status status;
  uint32_t retry_after_ms = 0;  // when to attach again; 0 if unknown
};

// Returns about how many bytes of memory `down` takes.
[[nodiscard]] size_t WeightOf(const wire::Down& down);

class SessionCodec {
 public:
  static constexpr size_t kKeptBytes = 64 << 10;

  SessionCodec();
  ~SessionCodec();
  SessionCodec(const SessionCodec&) = delete;
  SessionCodec& operator=(const SessionCodec&) = delete;

  // Appends a whole frame to *out.  Does not check that its body has at most wire::kMessageBytesMax
  // bytes; the peer refuses a longer one.
  void Append(const wire::Up& up, std::string* out);
  void Append(const wire::Down& down, std::string* out);
  // Parses the body of a frame into *up.  Returns InvalidArgument if `body` is not a message that
  // wire::Decode accepts, or if the parsed message would take more memory than its length allows
  // (ParsedWeightMax); the latter is found out before memory is allocated for the message.  After
  // an error *up may be partly overwritten.
  [[nodiscard]] absl::Status Parse(std::span<const std::byte> body, wire::Up* up);
  // Parses the body of a frame into *down.  Returns InvalidArgument if `body` is not a message that
  // wire::Decode accepts; *down may then be partly overwritten.
  [[nodiscard]] absl::Status Parse(std::span<const std::byte> body, wire::Down* down);
  // To be called when a parsed Up has been handled.  If the kept Up and *up may take more than
  // kKeptBytes, frees the memory of both; *up is then empty.  REQUIRES: every Parse since the last
  // Release filled this *up.
  void Release(wire::Up* up);

  // Appends the frame that ends a session.  Cuts off text beyond 256 bytes.
  static void AppendEnd(const SessionEnd& end, std::string* out);
  [[nodiscard]] static absl::StatusOr<SessionEnd> ParseEnd(std::span<const std::byte> body);

 private:
  struct Messages;
  const std::unique_ptr<Messages> messages_;
  size_t up_kept_ = 0, down_kept_ = 0;  // at the daemon's end: estimated memory of messages_
};

}  // namespace larder
