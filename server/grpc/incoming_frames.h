// What is open on one HTTP/2 connection of a gRPC client: which calls its client has not ended, and
// how much has come of messages that are not whole.
//
// gRPC tells its services about a message once all of it has come.  So this reads the frames beside
// gRPC (RFC 9113, section 4.1), and in DATA the lengths that gRPC puts before its messages
// (doc/PROTOCOL-HTTP2.md).  It looks at lengths, types and stream numbers alone, trusts none of
// them, and is no judge of what breaks the protocol: gRPC ends such a connection.
//
// Ownership: a value.  Thread-safety: none.
// Memory: some 50 B for each call that is open, of which gRPC allows so many on a connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/container/flat_hash_map.h"

namespace larder {

// The frames of one direction, in pieces as they come.
class FrameSplitter {
 public:
  struct Piece {
    uint8_t type = 0, flags = 0;
    uint32_t stream = 0;
    std::span<const std::byte> payload;  // perhaps none
    bool first = false;                  // it comes right after the frame's header
    bool last = false;                   // the frame ends with it
  };
  // `skip`: bytes before the first frame.
  explicit FrameSplitter(size_t skip) : left_(skip) {}
  void Feed(std::span<const std::byte> bytes, const std::function<void(const Piece&)>& visit);

 private:
  static constexpr size_t kHeaderBytes = 9;
  std::array<std::byte, kHeaderBytes> header_{};
  size_t header_bytes_ = 0;  // that have come; all of them: within a frame
  size_t left_;              // of its payload
};

class IncomingFrames {
 public:
  // About what gRPC keeps of a call whose first message is not whole, and of a piece of a message,
  // beside the memory that it was read into.
  static constexpr size_t kCallBytes = 8 << 10, kPieceBytes = 64;
  // gRPC's clients send 8 KiB at most.
  static constexpr size_t kHeadersMax = 32 << 10;

  // `capacity`: how much the memory could take that gRPC read this into.  gRPC keeps all of it,
  // also what it reads into the rest of it later, while it keeps a piece of it.
  // False: the headers of a call are longer than kHeadersMax; gRPC would collect them without end.
  [[nodiscard]] bool OnReceived(std::span<const std::byte> bytes, size_t capacity);
  void OnSent(std::span<const std::byte> bytes);

  // About the memory of what the client has begun and not ended.
  [[nodiscard]] size_t held() const { return held_; }
  [[nodiscard]] size_t calls() const { return calls_.size(); }

 private:
  static constexpr size_t kPrefaceBytes = 24;  // before the client's first frame
  static constexpr size_t kPrefixBytes = 5;    // before a message: compressed or not, its length
  struct Call {
    std::array<std::byte, kPrefixBytes> prefix{};
    size_t prefix_bytes = 0;    // that have come
    uint64_t message_left = 0;  // of the message, once its prefix is there
    uint64_t block = 0;         // the last one that holds a piece of its message
    size_t held = kCallBytes;   // for all of it
  };
  // What gRPC reads into: one allocation, which it fills in one read or in several.
  struct Block {
    uint64_t number = 0;
    size_t bytes = 0;
    const std::byte* end = nullptr;  // of what was read into it
  };
  void OnFrame(const FrameSplitter::Piece& piece);
  void OnData(Call& call, std::span<const std::byte> data);
  void Keep(Call& call) const;  // a piece of block_
  void End(uint32_t stream);

  FrameSplitter received_{kPrefaceBytes}, sent_{0};
  Block block_;
  absl::flat_hash_map<uint32_t, Call> calls_;  // by stream
  size_t held_ = 0;                            // the sum of theirs
  size_t headers_ = 0;                         // bytes of headers that are not whole
  bool headers_too_long_ = false;
};

}  // namespace larder
