// Converts the messages of a session to frames of its socket and back, so that neither end handles
// generated code or bytes.
//
// Append checks nothing.  Parse treats its input as hostile; convert.h says what is refused.
// Ownership: it keeps generated messages and reuses them, so that a busy session stops allocating.
// Protobuf frees no memory when it clears a message, so the memory of many messages of different
// shapes adds up: Append frees the kept Down, and Release the kept Up, once it may take more than
// kKeptBytes.
// Thread-safety: none; use one object for each direction.
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
  uint32_t retry_after_ms = 0;  // with ResourceExhausted: how long to wait before attaching again
};

// About how many bytes of memory a message takes.
[[nodiscard]] size_t WeightOf(const wire::Down& down);

class SessionCodec {
 public:
  static constexpr size_t kKeptBytes = 64 << 10;

  SessionCodec();
  ~SessionCodec();
  SessionCodec(const SessionCodec&) = delete;
  SessionCodec& operator=(const SessionCodec&) = delete;

  // Appends a whole frame to *out.  REQUIRES: the serialized message has at most kMessageBytesMax.
  void Append(const wire::Up& up, std::string* out);
  void Append(const wire::Down& down, std::string* out);
  // Returns InvalidArgument if `body` is not such a message, or if an Up would take many times its
  // length in memory, which Parse finds out before it allocates any.  After an error *up or *down
  // is partly overwritten.
  [[nodiscard]] absl::Status Parse(std::span<const std::byte> body, wire::Up* up);
  [[nodiscard]] absl::Status Parse(std::span<const std::byte> body, wire::Down* down);
  // The caller calls this after it has handled a parsed Up.  Frees the kept Up and what *up holds
  // once they may take more than kKeptBytes.  REQUIRES: every Parse since the last Release filled
  // this *up.
  void Release(wire::Up* up);

  // Appends the frame that ends a session.  Cuts off text beyond 256 bytes.
  static void AppendEnd(const SessionEnd& end, std::string* out);
  [[nodiscard]] static absl::StatusOr<SessionEnd> ParseEnd(std::span<const std::byte> body);

 private:
  struct Messages;
  const std::unique_ptr<Messages> messages_;
  size_t up_kept_ = 0, down_kept_ = 0;  // upper bounds of the memory of messages_
};

}  // namespace larder
