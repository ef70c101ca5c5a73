// The open calls of one HTTP/2 connection of a gRPC client, and how much memory their incomplete
// messages take.
//
// gRPC reports a message to a service when all of it has arrived.  So this class follows the frames
// of the connection (RFC 9113, section 4.1) as gRPC reads them, and in DATA frames the lengths that
// gRPC puts before its messages (doc/PROTOCOL-HTTP2.md of gRPC).  It looks only at lengths, types,
// flags and stream numbers, and trusts none of them.  It does not check the protocol: gRPC ends a
// connection that violates it.
//
// Ownership: a value.  Thread-safety: none.
// Memory: about 50 B for each open call; gRPC limits the calls of a connection
// (kStreamsPerConnectionMax).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/container/flat_hash_map.h"

namespace larder {

// Splits the bytes of one direction into frames, and visits the pieces of frames as they arrive.
class FrameSplitter {
 public:
  struct Piece {
    uint8_t type = 0, flags = 0;
    uint32_t stream = 0;
    std::span<const std::byte> payload;  // may be empty
    bool first = false;                  // follows the frame's header
    bool last = false;                   // ends the frame
  };
  // `skip` is the number of bytes before the first frame.
  explicit FrameSplitter(size_t skip) : left_(skip) {}
  void Feed(std::span<const std::byte> bytes, const std::function<void(const Piece&)>& visit);

 private:
  static constexpr size_t kHeaderBytes = 9;
  std::array<std::byte, kHeaderBytes> header_{};
  size_t header_bytes_ = 0;  // how many have arrived; kHeaderBytes within a payload
  size_t left_;              // bytes of the frame's payload that are still to come
};

class IncomingFrames {
 public:
  // About how much memory gRPC keeps for a call whose first message is incomplete, and for a piece
  // of a message in addition to the buffer into which it read the piece.
  static constexpr size_t kCallBytes = 8 << 10, kPieceBytes = 64;
  // The upper limit of the bytes of a call's headers, as they are sent.
  static constexpr size_t kHeadersMax = 32 << 10;

  // Counts bytes that gRPC has read.  `capacity` is the size of the buffer that gRPC read them
  // into: while gRPC keeps a piece of a buffer, it keeps all of it.  Returns false once the headers
  // of a call have been longer than kHeadersMax.
  [[nodiscard]] bool OnReceived(std::span<const std::byte> bytes, size_t capacity);
  void OnSent(std::span<const std::byte> bytes);

  // Returns about how much memory gRPC holds for messages that the client has begun and not
  // completed, and for calls whose first message is incomplete.
  [[nodiscard]] size_t held() const { return held_; }
  [[nodiscard]] size_t calls() const { return calls_.size(); }

 private:
  static constexpr size_t kPrefaceBytes = 24;  // before the client's first frame
  static constexpr size_t kPrefixBytes = 5;    // before a message: the compressed flag, its length
  struct Call {
    std::array<std::byte, kPrefixBytes> prefix{};
    size_t prefix_bytes = 0;    // how many have arrived
    uint64_t message_left = 0;  // bytes of the message still to come, once its prefix is complete
    uint64_t block = 0;         // number of the last Block that holds a piece of its message
    size_t held = kCallBytes;   // the memory of the call and its message
  };
  // A buffer that gRPC reads into: one allocation, which it fills by one read or by several.
  struct Block {
    uint64_t number = 0;
    size_t bytes = 0;
    const std::byte* end = nullptr;  // the end of the bytes that were read into it so far
  };
  void OnFrame(const FrameSplitter::Piece& piece);
  void OnData(Call& call, std::span<const std::byte> data);
  void Keep(Call& call) const;  // counts a piece of block_ for the call
  void End(uint32_t stream);

  FrameSplitter received_{kPrefaceBytes}, sent_{0};
  Block block_;
  absl::flat_hash_map<uint32_t, Call> calls_;  // by stream
  size_t held_ = 0;                            // the sum of Call::held
  size_t headers_ = 0;                         // bytes of headers that are incomplete
  bool headers_too_long_ = false;
};

}  // namespace larder
