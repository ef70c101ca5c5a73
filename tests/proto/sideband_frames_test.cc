#include "proto/frames/sideband_frames.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace larder {
namespace {

template <size_t N>
std::array<std::byte, N> Count(int from) {
  std::array<std::byte, N> bytes;
  for (size_t i = 0; i < N; ++i) bytes[i] = static_cast<std::byte>(from + static_cast<int>(i));
  return bytes;
}

BootId SomeBootId() {
  BootId id;
  std::ranges::copy(std::string("01234567-89ab-cdef-0123-456789abcdef"), id.begin());
  return id;
}

// One frame of each type, with its bytes written by hand from docs/format.md: type, version,
// length, body.
struct Example {
  Frame frame;
  std::string hex;
};
std::vector<Example> Examples() {
  DeviceHandle handle{};
  handle.front() = std::byte{0xA1};
  handle.back() = std::byte{0xA2};
  ShareTicket ticket{};
  ticket.front() = std::byte{0xB1};
  ticket.back() = std::byte{0xB2};
  return {
      {HelloFrame{0x01020304}, "0100 0100 04000000 04030201"},
      {ChallengeFrame{Count<16>(0)}, "0200 0100 10000000 000102030405060708090a0b0c0d0e0f"},
      {ChallengeReplyFrame{Count<16>(16)}, "0300 0100 10000000 101112131415161718191a1b1c1d1e1f"},
      {WelcomeFrame{Count<16>(32), {7}, MiB(1), true, SomeBootId()},
       "0400 0100 50000000 202122232425262728292a2b2c2d2e2f 0700000000000000 0000100000000000 01 "
       "00000000000000"
       "30313233343536372d383961622d636465662d303132332d343536373839616263646566 00000000"},
      {MapSlabFrame{SlabId{258}, true}, "0500 0100 08000000 02010000 01 000000"},
      {SlabFrame{SlabId{258}, false, GiB(1)},
       "0600 0100 10000000 02010000 00 000000 0000004000000000"},
      {MapSessionPageFrame{{9}}, "0700 0100 08000000 0900000000000000"},
      {SessionPageFrame{{9}, KiB(4)}, "0800 0100 10000000 0900000000000000 0010000000000000"},
      {StagingFrame{MiB(2)}, "0900 0100 08000000 0000200000000000"},
      {StagingOkFrame{3}, "0a00 0100 04000000 03000000"},
      {CleanFrame{{9}}, "0b00 0100 08000000 0900000000000000"},
      {CleanOkFrame{KiB(4)}, "0c00 0100 08000000 0010000000000000"},
      {ErrorFrame{absl::StatusCode::kNotFound, "no slab"},
       "0d00 0100 0f000000 05000000 07000000 6e6f20736c6162"},
      {DropStagingFrame{3}, "0e00 0100 04000000 03000000"},
      {DropStagingOkFrame{}, "0f00 0100 00000000"},
      {OpenSessionFrame{0x01020304}, "1000 0100 04000000 04030201"},
      {SessionSocketFrame{}, "1100 0100 00000000"},
      {ShareMemoryFrame{MiB(2)}, "1200 0100 08000000 0000200000000000"},
      {ShareHandleFrame{MiB(2), handle},
       "1300 0100 48000000 0000200000000000 a1" + std::string(124, '0') + "a2"},
      {SharedFrame{ticket}, "1400 0100 10000000 b1" + std::string(28, '0') + "b2"},
      {OpenSharedFrame{ticket}, "1500 0100 10000000 b1" + std::string(28, '0') + "b2"},
      {SharedMemoryFrame{MiB(2)}, "1600 0100 08000000 0000200000000000"},
      {SharedHandleFrame{MiB(2), handle},
       "1700 0100 48000000 0000200000000000 a1" + std::string(124, '0') + "a2"},
      {DropSharedFrame{ticket}, "1800 0100 10000000 b1" + std::string(28, '0') + "b2"},
      {DropSharedOkFrame{}, "1900 0100 00000000"},
      {MakeStagingFrame{MiB(2)}, "1a00 0100 08000000 0000200000000000"},
      {StagingMadeFrame{3, MiB(2)}, "1b00 0100 10000000 03000000 00000000 0000200000000000"},
  };
}

std::vector<std::byte> Unhex(std::string hex) {
  std::erase(hex, ' ');
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<std::byte> Encoded(const Frame& frame) {
  const EncodedFrame packet = EncodeFrame(frame);
  return {packet.bytes().begin(), packet.bytes().end()};
}

void FixLength(std::vector<std::byte>* packet) {
  const auto length = static_cast<uint32_t>(packet->size() - kFrameHeaderBytes);
  std::memcpy(packet->data() + 4, &length, sizeof length);
}

absl::StatusCode CodeOf(const std::vector<std::byte>& packet) {
  return DecodeFrame(packet).status().code();
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(SidebandFrames, TheBytesAreAsDocumented) {
  const std::vector<Example> examples = Examples();
  ASSERT_EQ(examples.size(), std::variant_size_v<Frame>);
  for (size_t i = 0; i < examples.size(); ++i) {
    const Example& e = examples[i];
    ASSERT_EQ(static_cast<size_t>(TypeOf(e.frame)), i + 1);
    EXPECT_EQ(Encoded(e.frame), Unhex(e.hex)) << ToString(TypeOf(e.frame));
    const absl::StatusOr<Frame> decoded = DecodeFrame(Unhex(e.hex));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, e.frame);
  }
}

TEST(SidebandFrames, OneByteMoreOrLessIsRefusedWithOrWithoutTheRightLength) {
  for (const Example& e : Examples()) {
    const std::vector<std::byte> good = Encoded(e.frame);
    for (size_t size = 0; size < good.size(); ++size) {
      std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(size));
      EXPECT_EQ(CodeOf(cut), kInvalid);
      if (size < kFrameHeaderBytes) continue;
      FixLength(&cut);
      EXPECT_EQ(CodeOf(cut), kInvalid) << ToString(TypeOf(e.frame)) << " " << size;
    }
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    EXPECT_EQ(CodeOf(longer), kInvalid);
    FixLength(&longer);
    EXPECT_EQ(CodeOf(longer), kInvalid) << ToString(TypeOf(e.frame));
  }
}

TEST(SidebandFrames, TheLengthMustMatchThePacket) {
  for (const Example& e : Examples()) {
    for (size_t byte = 4; byte < kFrameHeaderBytes; ++byte) {
      std::vector<std::byte> packet = Encoded(e.frame);
      packet[byte] ^= std::byte{1};
      EXPECT_EQ(CodeOf(packet), kInvalid) << ToString(TypeOf(e.frame)) << " " << byte;
    }
  }
}

TEST(SidebandFrames, UnknownTypesAndVersionsAreUnimplemented) {
  for (const uint16_t type : {uint16_t{0}, uint16_t{28}, uint16_t{256}, uint16_t{65'535}}) {
    std::vector<std::byte> packet = Encoded(CleanFrame{});
    std::memcpy(packet.data(), &type, sizeof type);
    EXPECT_EQ(CodeOf(packet), kUnimplemented) << type;
  }
  for (const uint16_t version : {uint16_t{0}, uint16_t{2}, uint16_t{257}}) {
    std::vector<std::byte> packet = Encoded(CleanFrame{});
    std::memcpy(packet.data() + 2, &version, sizeof version);
    EXPECT_EQ(CodeOf(packet), kUnimplemented) << version;
  }
}

TEST(SidebandFrames, ReservedBytesFlagsAndNumbersAreChecked) {
  struct Case {
    Frame frame;
    size_t offset;
    uint8_t value;
  };
  const Case cases[] = {
      {Examples()[3].frame, 8 + 32, 2},  // writable
      {Examples()[3].frame, 8 + 33, 1},  // reserved
      {Examples()[3].frame, 8 + 39, 1},
      {Examples()[3].frame, 8 + 40, 0},  // boot id
      {Examples()[3].frame, 8 + 75, '\n'},
      {Examples()[3].frame, 8 + 76, 'x'},  // after the boot id
      {Examples()[3].frame, 8 + 79, 1},
      {MapSlabFrame{}, 8 + 2, 1},  // slab 65,536
      {MapSlabFrame{}, 8 + 3, 1},
      {MapSlabFrame{}, 8 + 4, 255},
      {MapSlabFrame{}, 8 + 7, 1},
      {SlabFrame{}, 8 + 5, 1},
      {ErrorFrame{}, 8, 0},  // code OK
      {ErrorFrame{}, 8, 17},
      {ErrorFrame{}, 8 + 3, 1},
      {ErrorFrame{}, 8 + 4, 1},  // text longer than the packet
      {ErrorFrame{}, 8 + 7, 255},
  };
  for (const Case& c : cases) {
    std::vector<std::byte> packet = Encoded(c.frame);
    ASSERT_TRUE(DecodeFrame(packet).ok());
    packet[c.offset] = std::byte{c.value};
    EXPECT_EQ(CodeOf(packet), kInvalid) << ToString(TypeOf(c.frame)) << " " << c.offset;
  }
}

TEST(SidebandFrames, TextOfAnErrorIsBounded) {
  const ErrorFrame longest{absl::StatusCode::kInternal, std::string(kErrorTextBytesMax, 'x')};
  EXPECT_EQ(Encoded(longest).size(), kFrameBytesMax);
  EXPECT_EQ(*DecodeFrame(Encoded(longest)), Frame(longest));
  EXPECT_EQ(Encoded(ErrorFrame{longest.code, longest.text + "y"}), Encoded(longest));
  // 257 bytes of text, with correct lengths everywhere.
  std::vector<std::byte> packet = Encoded(longest);
  packet.push_back(std::byte{'x'});
  FixLength(&packet);
  const uint32_t size = kErrorTextBytesMax + 1;
  std::memcpy(packet.data() + 12, &size, sizeof size);
  EXPECT_EQ(CodeOf(packet), kInvalid);
}

TEST(SidebandFrames, StatusRoundTrips) {
  const absl::Status status = absl::PermissionDeniedError("uid 1000 may not map writable");
  const Frame sent = ErrorOf(status);
  const absl::StatusOr<Frame> received = DecodeFrame(Encoded(sent));
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(StatusOf(std::get<ErrorFrame>(*received)), status);
  EXPECT_EQ(std::get<ErrorFrame>(*DecodeFrame(Encoded(ErrorFrame{absl::StatusCode::kOk, ""}))).code,
            absl::StatusCode::kUnknown);
}

TEST(SidebandFrames, SomeTypesCarryADescriptor) {
  int carriers = 0;
  for (const Example& e : Examples()) carriers += CarriesDescriptor(TypeOf(e.frame)) ? 1 : 0;
  EXPECT_EQ(carriers, 7);
  EXPECT_TRUE(CarriesDescriptor(FrameType::kSlab));
  EXPECT_TRUE(CarriesDescriptor(FrameType::kSessionPage));
  EXPECT_TRUE(CarriesDescriptor(FrameType::kStaging));
  EXPECT_TRUE(CarriesDescriptor(FrameType::kShareMemory));
  EXPECT_TRUE(CarriesDescriptor(FrameType::kSharedMemory));
  EXPECT_TRUE(CarriesDescriptor(FrameType::kStagingMade));
  EXPECT_FALSE(CarriesDescriptor(FrameType::kSharedHandle));
  EXPECT_TRUE(CarriesDescriptor(FrameType::kSessionSocket));
}

}  // namespace
}  // namespace larder
