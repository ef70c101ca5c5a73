// The messages that tests of session sockets send.
#pragma once

#include <malloc.h>

#include <string>

#include "proto/frames/session_frames.h"
#include "proto/messages/messages.h"
#include "tests/client/session/session_peer.h"

namespace larder::testing {

using Client = SessionPeer<wire::Up, wire::Down>;

inline wire::Up HelloUp(wire::WriteMode mode = wire::WriteMode::kMapped) {
  wire::Up up;
  up.hello.emplace();
  up.hello->engine_id = "engine";
  up.hello->write_mode = mode;
  return up;
}

// Without a registered variant each key is INVALID: an answer of any size without any block.
inline wire::Up AcquireUp(uint64_t id, size_t keys = 1) {
  wire::Up up;
  wire::Acquire& acquire = up.acquires.emplace_back();
  acquire.id = id;
  acquire.digests.resize(keys);
  acquire.accepted_codecs = {Codec::kIdentity};
  return up;
}

inline wire::Up ByeUp() {
  wire::Up up;
  up.bye = true;
  return up;
}

inline std::string FrameWith(SessionFrameType type, const std::string& body) {
  const auto header = EncodeSessionFrameHeader(type, body.size());
  return std::string(header.data(), header.size()) + body;
}

// Returns the bytes allocated from the heap.  A sanitizer replaces the allocator, and then this
// number does not change.
inline size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace larder::testing
