// Any packet decodes to a frame, InvalidArgument or Unimplemented, and a decoded frame encodes to
// exactly the packet that it came from.
#include <algorithm>
#include <cstring>

#include "proto/frames/sideband_frames.h"
#include "storage/check.h"
#include "tests/fuzz/byte_fuzz.h"

namespace larder {
namespace {

void DecodeAndEncode(std::span<const std::byte> packet) {
  const absl::StatusOr<Frame> frame = DecodeFrame(packet);
  if (!frame.ok()) {
    LARDER_CHECK(frame.status().code() == absl::StatusCode::kInvalidArgument ||
                 frame.status().code() == absl::StatusCode::kUnimplemented);
    return;
  }
  LARDER_CHECK(std::ranges::equal(EncodeFrame(*frame).bytes(), packet));
}

std::string PacketOf(const Frame& frame) {
  const EncodedFrame packet = EncodeFrame(frame);
  LARDER_CHECK(DecodeFrame(packet.bytes()).ok());
  return {reinterpret_cast<const char*>(packet.bytes().data()), packet.bytes().size()};
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  WelcomeFrame welcome;
  welcome.boot_id.fill('0');
  return {PacketOf(HelloFrame{}),
          PacketOf(ChallengeFrame{}),
          PacketOf(ChallengeReplyFrame{}),
          PacketOf(welcome),
          PacketOf(MapSlabFrame{}),
          PacketOf(SlabFrame{}),
          PacketOf(MapSessionPageFrame{}),
          PacketOf(SessionPageFrame{}),
          PacketOf(StagingFrame{}),
          PacketOf(StagingOkFrame{}),
          PacketOf(CleanFrame{}),
          PacketOf(CleanOkFrame{}),
          PacketOf(ErrorFrame{absl::StatusCode::kInternal, "sixteen letters."}),
          PacketOf(DropStagingFrame{}),
          PacketOf(DropStagingOkFrame{}),
          PacketOf(OpenSessionFrame{}),
          PacketOf(SessionSocketFrame{}),
          PacketOf(ShareMemoryFrame{}),
          PacketOf(ShareHandleFrame{}),
          PacketOf(SharedFrame{}),
          PacketOf(OpenSharedFrame{}),
          PacketOf(SharedMemoryFrame{}),
          PacketOf(SharedHandleFrame{}),
          PacketOf(DropSharedFrame{}),
          PacketOf(DropSharedOkFrame{}),
          PacketOf(MakeStagingFrame{}),
          PacketOf(StagingMadeFrame{})};
}

}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace larder;
  std::vector<std::byte> packet(size);
  if (size > 0) std::memcpy(packet.data(), data, size);
  DecodeAndEncode(packet);
  // With the right length, a body that was cut or extended reaches the decoder of its type.
  if (size >= kFrameHeaderBytes) {
    const auto length = static_cast<uint32_t>(size - kFrameHeaderBytes);
    std::memcpy(packet.data() + 4, &length, sizeof length);
    DecodeAndEncode(packet);
  }
  return 0;
}
