#include "server/grpc/incoming_frames.h"

#include <algorithm>
#include <cstring>

namespace larder {
namespace {

// RFC 9113, section 6.
constexpr uint8_t kData = 0, kHeaders = 1, kResetStream = 3, kContinuation = 9;
constexpr uint8_t kEndStream = 1;   // a flag of kData and kHeaders
constexpr uint8_t kEndHeaders = 4;  // of kHeaders and kContinuation

bool EndsStream(const FrameSplitter::Piece& piece) {
  if (!piece.last) return false;
  if (piece.type == kResetStream) return true;
  return (piece.type == kData || piece.type == kHeaders) && (piece.flags & kEndStream) != 0;
}

uint32_t BigEndian(std::span<const std::byte> bytes) {
  uint32_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<uint32_t>(byte);
  return value;
}

// Moves as many bytes as fit from the front of `bytes` to `room`; returns how many.
size_t Fill(std::span<std::byte> room, std::span<const std::byte>* bytes) {
  const size_t moved = std::min(room.size(), bytes->size());
  if (moved != 0) std::memcpy(room.data(), bytes->data(), moved);
  *bytes = bytes->subspan(moved);
  return moved;
}

}  // namespace

void FrameSplitter::Feed(std::span<const std::byte> bytes,
                         const std::function<void(const Piece&)>& visit) {
  while (!bytes.empty()) {
    bool first = false;
    // Bytes before the first frame are skipped: left_ counts them, and header_bytes_ is 0.
    if (left_ == 0) {
      header_bytes_ += Fill(std::span(header_).subspan(header_bytes_), &bytes);
      if (header_bytes_ < kHeaderBytes) return;
      left_ = BigEndian(std::span(header_).first<3>());
      first = true;
    }
    const size_t taken = std::min(left_, bytes.size());
    if (header_bytes_ == kHeaderBytes) {
      constexpr uint32_t kStreamBits = 0x7fffffff;
      visit({.type = std::to_integer<uint8_t>(header_[3]),
             .flags = std::to_integer<uint8_t>(header_[4]),
             .stream = BigEndian(std::span(header_).subspan<5, 4>()) & kStreamBits,
             .payload = bytes.first(taken),
             .first = first,
             .last = taken == left_});
    }
    bytes = bytes.subspan(taken);
    left_ -= taken;
    if (left_ == 0) header_bytes_ = 0;
  }
}

bool IncomingFrames::OnReceived(std::span<const std::byte> bytes, size_t capacity) {
  // Bytes that begin where the previous ones ended are taken to be in the same buffer.
  if (bytes.data() != block_.end) block_ = {.number = block_.number + 1, .bytes = capacity};
  block_.end = bytes.data() + bytes.size();
  received_.Feed(bytes, [this](const FrameSplitter::Piece& piece) { OnFrame(piece); });
  return !headers_too_long_;
}

void IncomingFrames::OnSent(std::span<const std::byte> bytes) {
  sent_.Feed(bytes, [this](const FrameSplitter::Piece& piece) {
    if (EndsStream(piece)) End(piece.stream);
  });
}

void IncomingFrames::OnFrame(const FrameSplitter::Piece& piece) {
  if (piece.type == kHeaders || piece.type == kContinuation) {
    headers_ += piece.payload.size();
    headers_too_long_ |= headers_ > kHeadersMax;
    if (piece.last && (piece.flags & kEndHeaders) != 0) headers_ = 0;
  }
  // gRPC gets nothing more for this call, so it drops an incomplete message.
  if (EndsStream(piece)) return End(piece.stream);
  if (piece.type == kHeaders && piece.first) {
    if (calls_.try_emplace(piece.stream).second) held_ += kCallBytes;
  } else if (piece.type == kData) {
    const auto call = calls_.find(piece.stream);
    if (call != calls_.end()) OnData(call->second, piece.payload);
  }
}

void IncomingFrames::OnData(Call& call, std::span<const std::byte> data) {
  const size_t before = call.held;
  if (!data.empty()) Keep(call);
  while (!data.empty()) {
    if (call.message_left == 0) {
      call.prefix_bytes += Fill(std::span(call.prefix).subspan(call.prefix_bytes), &data);
      if (call.prefix_bytes < kPrefixBytes) break;
      call.message_left = BigEndian(std::span(call.prefix).last<4>());
    }
    const auto taken = static_cast<size_t>(std::min<uint64_t>(call.message_left, data.size()));
    data = data.subspan(taken);
    call.message_left -= taken;
    if (call.message_left != 0) break;
    // The message is complete, so it is no longer counted here.
    call.prefix_bytes = 0;
    call.held = 0;
    call.block = 0;
    if (!data.empty()) Keep(call);
  }
  held_ += call.held - before;
}

void IncomingFrames::Keep(Call& call) const {
  call.held += kPieceBytes + (call.block == block_.number ? 0 : block_.bytes);
  call.block = block_.number;
}

void IncomingFrames::End(uint32_t stream) {
  const auto call = calls_.find(stream);
  if (call == calls_.end()) return;
  held_ -= call->second.held;
  calls_.erase(call);
}

}  // namespace larder
