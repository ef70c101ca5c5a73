// The messages of a session as frames of its socket, for both ends: they see neither generated code
// nor bytes.
//
// Append checks nothing; Parse treats its input as hostile (convert.h has what it refuses).
// Ownership: keeps generated messages to use again, so that a busy session stops allocating.
// Protobuf frees nothing when it clears a message, so many messages of different shapes add up:
// Append frees the kept Down, and Release the kept Up, once it may take more than kKeptBytes.
// Thread-safety: none; one object a direction.
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

// How a session ended.  Over gRPC a call's status and trailing metadata say it.
struct SessionEnd {
  absl::Status status;
  uint32_t retry_after_ms = 0;  // with ResourceExhausted: when to attach again
};

// About the bytes of memory that an answer takes.
[[nodiscard]] size_t WeightOf(const wire::Down& down);

class SessionCodec {
 public:
  static constexpr size_t kKeptBytes = 64 << 10;

  SessionCodec();
  ~SessionCodec();
  SessionCodec(const SessionCodec&) = delete;
  SessionCodec& operator=(const SessionCodec&) = delete;

  // A whole frame, at the end of *out.  REQUIRES: the message has at most kMessageBytesMax.
  void Append(const wire::Up& up, std::string* out);
  void Append(const wire::Down& down, std::string* out);
  // InvalidArgument: no such message, or (of an Up) one that would take many times its length in
  // memory, which is seen before it takes any.  *out is then some mixture.
  [[nodiscard]] absl::Status Parse(std::span<const std::byte> body, wire::Up* up);
  [[nodiscard]] absl::Status Parse(std::span<const std::byte> body, wire::Down* down);
  // To be called after a parsed Up was handled: frees the kept Up, and what *up holds, once they
  // may take more than kKeptBytes.  REQUIRES: every Parse since the last Release filled this *up.
  void Release(wire::Up* up);

  // Text beyond 256 bytes is cut off.
  static void AppendEnd(const SessionEnd& end, std::string* out);
  [[nodiscard]] static absl::StatusOr<SessionEnd> ParseEnd(std::span<const std::byte> body);

 private:
  struct Messages;
  const std::unique_ptr<Messages> messages_;
  size_t up_kept_ = 0, down_kept_ = 0;  // upper bounds of what messages_ takes
};

}  // namespace larder
