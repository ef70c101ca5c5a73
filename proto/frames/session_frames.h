// Frames of a session socket: the SOCK_STREAM socket, handed out by the sideband, on which a
// process of this host says what others say on Engine.Attach (docs/format.md, "Session socket").
//
// A codec only: it knows neither sockets nor what is in a message (session_codec.h does).  What it
// reads is hostile: any bytes give frames or a Status.
//
// Ownership: the reader owns its buffer; a frame's body lies in it.  Thread-safety: none.
// Lifecycle of a reader: Room -> (received into) -> Take -> Next until it answers nothing -> Room.
// Limits: bodies of `body_bytes_max`.  The buffer grows with what arrived, never with what a header
// promises, and is small again after a large frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"

namespace larder {

inline constexpr uint16_t kSessionFrameVersion = 1;
inline constexpr size_t kSessionFrameHeaderBytes = 8;

// Numbers of the wire.
enum class SessionFrameType : uint16_t {
  kMessage = 1,  // v1.Up or v1.Down, by direction
  kEnd = 2,      // v1.SessionEnd, the daemon's last word
};

struct SessionFrame {
  SessionFrameType type;
  std::span<const std::byte> body;
};

// REQUIRES: body_bytes fits 32 bits.
[[nodiscard]] std::array<char, kSessionFrameHeaderBytes> EncodeSessionFrameHeader(
    SessionFrameType type, size_t body_bytes);

class SessionFrameReader {
 public:
  explicit SessionFrameReader(size_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  // Where to receive into, at least kRoomBytes.  Ends the frames that Next gave.
  [[nodiscard]] std::span<std::byte> Room();
  // Gives memory back that a large frame took.  Ends the frames that Next gave.
  void Trim();
  // So much of the room has bytes now.
  void Take(size_t received) { end_ += received; }
  // nullopt: more must come first.  Unimplemented: a version or type of another time.
  // InvalidArgument: too long.  After an error nothing more can be read.
  [[nodiscard]] absl::StatusOr<std::optional<SessionFrame>> Next();

  // Of a frame that is not whole something came.
  [[nodiscard]] bool partial() const { return begin_ != end_; }
  // The body of the frame that has begun and is not whole; 0: none has.  As of the last Next.
  [[nodiscard]] size_t awaited_bytes() const { return awaited_; }
  [[nodiscard]] size_t buffer_bytes() const { return capacity_; }

  static constexpr size_t kRoomBytes = 16 << 10;

 private:
  [[nodiscard]] size_t Wanted() const;
  void MoveTo(size_t capacity);

  const size_t body_bytes_max_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_ = 0;
  size_t begin_ = 0;  // of what Next has not given
  size_t end_ = 0;    // of what arrived
  size_t awaited_ = 0;
};

}  // namespace larder
