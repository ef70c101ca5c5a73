// Frames of a session socket: the SOCK_STREAM socket, handed out by the sideband, on which a
// process of this host speaks the protocol of Engine.Attach (docs/format.md, "Session socket").
//
// This is only a codec: it knows neither sockets nor what a message contains (session_codec.h
// does).  It treats its input as hostile: any bytes result in frames, in a request for more bytes,
// or in an error.
//
// Ownership: the reader owns its buffer, in which the body of a frame lies.  Thread-safety: none.
// Lifecycle of a reader: Room -> (the caller receives) -> Take -> Next until it returns nullopt ->
// Room.
// Limits: a body that is read has at most `body_bytes_max` bytes.  The buffer grows with the bytes
// that arrived, never with the length that a header states, and Room and Trim shrink it when little
// of it is needed.
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

// The numbers are those of the wire.
enum class SessionFrameType : uint16_t {
  kMessage = 1,  // v1.Up or v1.Down, by direction
  kEnd = 2,      // v1.SessionEnd, the daemon's last frame
};

struct SessionFrame {
  SessionFrameType type;
  std::span<const std::byte> body;
};

// REQUIRES: body_bytes fits into 32 bits.
[[nodiscard]] std::array<char, kSessionFrameHeaderBytes> EncodeSessionFrameHeader(
    SessionFrameType type, size_t body_bytes);

class SessionFrameReader {
 public:
  explicit SessionFrameReader(size_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  // The memory to receive into, at least kRoomBytes.  Invalidates the frames that Next returned.
  [[nodiscard]] std::span<std::byte> Room();
  // Shrinks the buffer, for example after a large frame, if it is more than four times as large as
  // the bytes that Next has not returned require (Wanted).  Invalidates the frames that Next
  // returned.
  void Trim();
  // Adds `received` bytes, which the caller has written to the beginning of what Room returned.
  void Take(size_t received) { end_ += received; }
  // Returns the next whole frame, whose body is valid until Room or Trim is called.  Returns
  // nullopt if no frame has arrived completely, Unimplemented if the version or type is unknown,
  // InvalidArgument if the body is longer than the limit.  After an error, every later call returns
  // that error.
  [[nodiscard]] absl::StatusOr<std::optional<SessionFrame>> Next();

  // Returns true if bytes of a frame have arrived that Next has not returned.
  [[nodiscard]] bool partial() const { return begin_ != end_; }
  // As of the last Next: the length of the body of a frame whose header has arrived and whose body
  // has not arrived completely, or 0 if there is none.
  [[nodiscard]] size_t awaited_bytes() const { return awaited_; }
  [[nodiscard]] size_t buffer_bytes() const { return capacity_; }

  static constexpr size_t kRoomBytes = 16 << 10;

 private:
  [[nodiscard]] size_t Wanted() const;
  void MoveTo(size_t capacity);

  const size_t body_bytes_max_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t capacity_ = 0;
  size_t begin_ = 0;  // of the bytes that Next has not returned
  size_t end_ = 0;    // of the bytes that arrived
  size_t awaited_ = 0;
};

}  // namespace larder
