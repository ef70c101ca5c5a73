// Frames of the sideband, the SOCK_SEQPACKET socket that carries descriptors and identifies
// processes.  docs/format.md, "Sideband", has the bytes and says which end sends what when.
//
// This is only a codec: it opens no socket, passes no descriptor and checks no order of frames.
// One frame is one packet.  Decoding treats its input as hostile: any bytes result in a frame or a
// Status, and a decoded frame encodes back to the same bytes.
//
// Ownership: values.  Thread-safety: pure functions.  Only the text of an error is allocated.
// Limits: a packet has at most kFrameBytesMax bytes, and carries one descriptor if
// CarriesDescriptor returns true for its type, otherwise none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/types.h"

namespace larder {

inline constexpr uint16_t kSidebandVersion = 1;
inline constexpr size_t kNonceBytes = 16;
inline constexpr size_t kTokenBytes = 16;
inline constexpr size_t kBootIdBytes = 36;
inline constexpr size_t kErrorTextBytesMax = 256;
inline constexpr size_t kFrameHeaderBytes = 8;
inline constexpr size_t kFrameBytesMax = kFrameHeaderBytes + 8 + kErrorTextBytesMax;

// The numbers are those of the wire.
enum class FrameType : uint16_t {
  kHello = 1,
  kChallenge = 2,
  kChallengeReply = 3,
  kWelcome = 4,
  kMapSlab = 5,
  kSlab = 6,
  kMapSessionPage = 7,
  kSessionPage = 8,
  kStaging = 9,
  kStagingOk = 10,
  kClean = 11,
  kCleanOk = 12,
  kError = 13,
  kDropStaging = 14,
  kDropStagingOk = 15,
  kOpenSession = 16,
  kSessionSocket = 17,
  kShareMemory = 18,
  kShareHandle = 19,
  kShared = 20,
  kOpenShared = 21,
  kSharedMemory = 22,
  kSharedHandle = 23,
  kDropShared = 24,
  kDropSharedOk = 25,
  kMakeStaging = 26,
  kStagingMade = 27,
};

using Nonce = std::array<std::byte, kNonceBytes>;
using SidebandToken = std::array<std::byte, kTokenBytes>;
inline constexpr size_t kDeviceHandleBytes = 64;
using DeviceHandle = std::array<std::byte, kDeviceHandleBytes>;
using BootId = std::array<char, kBootIdBytes>;  // text without a NUL, printable ASCII

struct HelloFrame {  // from the client
  static constexpr FrameType kType = FrameType::kHello;
  uint32_t flags = 0;  // none is defined; the daemon ignores unknown ones
  friend bool operator==(const HelloFrame&, const HelloFrame&) = default;
};
struct ChallengeFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kChallenge;
  Nonce nonce{};
  friend bool operator==(const ChallengeFrame&, const ChallengeFrame&) = default;
};
struct ChallengeReplyFrame {  // from the client
  static constexpr FrameType kType = FrameType::kChallengeReply;
  Nonce nonce{};
  friend bool operator==(const ChallengeReplyFrame&, const ChallengeReplyFrame&) = default;
};
struct WelcomeFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kWelcome;
  SidebandToken token{};
  ProcessId process;
  ByteCount slab_bytes;
  bool writable = false;  // the process's uid may map slabs writable
  BootId boot_id{};
  friend bool operator==(const WelcomeFrame&, const WelcomeFrame&) = default;
};
struct MapSlabFrame {  // from the client
  static constexpr FrameType kType = FrameType::kMapSlab;
  SlabId slab{};
  bool writable = false;
  friend bool operator==(const MapSlabFrame&, const MapSlabFrame&) = default;
};
struct SlabFrame {  // from the daemon, with a descriptor
  static constexpr FrameType kType = FrameType::kSlab;
  SlabId slab{};
  bool writable = false;
  ByteCount bytes;
  friend bool operator==(const SlabFrame&, const SlabFrame&) = default;
};
struct MapSessionPageFrame {  // from the client
  static constexpr FrameType kType = FrameType::kMapSessionPage;
  SessionId session;
  friend bool operator==(const MapSessionPageFrame&, const MapSessionPageFrame&) = default;
};
struct SessionPageFrame {  // from the daemon, with a descriptor
  static constexpr FrameType kType = FrameType::kSessionPage;
  SessionId session;
  ByteCount bytes;
  friend bool operator==(const SessionPageFrame&, const SessionPageFrame&) = default;
};
// From an older client library, with a descriptor.  The daemon refuses the frame, because the
// daemon makes staging segments itself now.
struct StagingFrame {
  static constexpr FrameType kType = FrameType::kStaging;
  ByteCount bytes;
  friend bool operator==(const StagingFrame&, const StagingFrame&) = default;
};
struct StagingOkFrame {  // from the daemon; only older ones send it
  static constexpr FrameType kType = FrameType::kStagingOk;
  uint32_t staging_id = 0;
  friend bool operator==(const StagingOkFrame&, const StagingOkFrame&) = default;
};
// From the client: its process has unmapped all memory of the session, and no copy into or out of
// that memory is under way.
struct CleanFrame {
  static constexpr FrameType kType = FrameType::kClean;
  SessionId session;
  friend bool operator==(const CleanFrame&, const CleanFrame&) = default;
};
struct CleanOkFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kCleanOk;
  ByteCount released;
  friend bool operator==(const CleanOkFrame&, const CleanOkFrame&) = default;
};
struct ErrorFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kError;
  absl::StatusCode code = absl::StatusCode::kUnknown;  // 1 to 16, as in gRPC
  std::string text;  // at most 256 bytes, written by the peer: print it escaped
  friend bool operator==(const ErrorFrame&, const ErrorFrame&) = default;
};
struct DropStagingFrame {  // from the client
  static constexpr FrameType kType = FrameType::kDropStaging;
  uint32_t staging_id = 0;
  friend bool operator==(const DropStagingFrame&, const DropStagingFrame&) = default;
};
struct DropStagingOkFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kDropStagingOk;
  friend bool operator==(const DropStagingOkFrame&, const DropStagingOkFrame&) = default;
};
struct OpenSessionFrame {  // from the client
  static constexpr FrameType kType = FrameType::kOpenSession;
  uint32_t flags = 0;  // none is defined; the daemon ignores unknown ones
  friend bool operator==(const OpenSessionFrame&, const OpenSessionFrame&) = default;
};
struct SessionSocketFrame {  // from the daemon, with a descriptor
  static constexpr FrameType kType = FrameType::kSessionSocket;
  friend bool operator==(const SessionSocketFrame&, const SessionSocketFrame&) = default;
};
// From the client, with a descriptor of device memory.  A SharedFrame answers it with a ticket by
// which processes of the same uid can open the memory.
struct ShareMemoryFrame {
  static constexpr FrameType kType = FrameType::kShareMemory;
  ByteCount bytes;
  friend bool operator==(const ShareMemoryFrame&, const ShareMemoryFrame&) = default;
};
struct ShareHandleFrame {  // from the client: shares device memory by a driver's handle
  static constexpr FrameType kType = FrameType::kShareHandle;
  ByteCount bytes;
  DeviceHandle handle{};
  friend bool operator==(const ShareHandleFrame&, const ShareHandleFrame&) = default;
};
struct SharedFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kShared;
  ShareTicket ticket{};
  friend bool operator==(const SharedFrame&, const SharedFrame&) = default;
};
struct OpenSharedFrame {  // from the client
  static constexpr FrameType kType = FrameType::kOpenShared;
  ShareTicket ticket{};
  friend bool operator==(const OpenSharedFrame&, const OpenSharedFrame&) = default;
};
struct SharedMemoryFrame {  // from the daemon, with a descriptor
  static constexpr FrameType kType = FrameType::kSharedMemory;
  ByteCount bytes;
  friend bool operator==(const SharedMemoryFrame&, const SharedMemoryFrame&) = default;
};
struct SharedHandleFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kSharedHandle;
  ByteCount bytes;
  DeviceHandle handle{};
  friend bool operator==(const SharedHandleFrame&, const SharedHandleFrame&) = default;
};
struct DropSharedFrame {  // from the client
  static constexpr FrameType kType = FrameType::kDropShared;
  ShareTicket ticket{};
  friend bool operator==(const DropSharedFrame&, const DropSharedFrame&) = default;
};
struct DropSharedOkFrame {  // from the daemon
  static constexpr FrameType kType = FrameType::kDropSharedOk;
  friend bool operator==(const DropSharedOkFrame&, const DropSharedOkFrame&) = default;
};
struct MakeStagingFrame {  // from the client
  static constexpr FrameType kType = FrameType::kMakeStaging;
  ByteCount bytes;
  friend bool operator==(const MakeStagingFrame&, const MakeStagingFrame&) = default;
};
struct StagingMadeFrame {  // from the daemon, with a descriptor
  static constexpr FrameType kType = FrameType::kStagingMade;
  uint32_t staging_id = 0;
  ByteCount bytes;
  friend bool operator==(const StagingMadeFrame&, const StagingMadeFrame&) = default;
};

using Frame =
    std::variant<HelloFrame, ChallengeFrame, ChallengeReplyFrame, WelcomeFrame, MapSlabFrame,
                 SlabFrame, MapSessionPageFrame, SessionPageFrame, StagingFrame, StagingOkFrame,
                 CleanFrame, CleanOkFrame, ErrorFrame, DropStagingFrame, DropStagingOkFrame,
                 OpenSessionFrame, SessionSocketFrame, ShareMemoryFrame, ShareHandleFrame,
                 SharedFrame, OpenSharedFrame, SharedMemoryFrame, SharedHandleFrame,
                 DropSharedFrame, DropSharedOkFrame, MakeStagingFrame, StagingMadeFrame>;

[[nodiscard]] FrameType TypeOf(const Frame& frame);
[[nodiscard]] const char* ToString(FrameType type);
// Returns true if a packet of this type carries exactly one descriptor; all others carry none.
[[nodiscard]] bool CarriesDescriptor(FrameType type);

// The bytes of one packet, without allocation.
class EncodedFrame {
 public:
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(data_).first(size_); }

 private:
  friend class FrameWriter;
  std::array<std::byte, kFrameBytesMax> data_{};
  size_t size_ = 0;
};

// Encodes a frame.  Cuts off the text of an error beyond 256 bytes, and replaces a code that is not
// an error by UNKNOWN.
[[nodiscard]] EncodedFrame EncodeFrame(const Frame& frame);

// The frame that reports `status` to the peer.  REQUIRES: !status.ok().
[[nodiscard]] ErrorFrame ErrorOf(const absl::Status& status);
// The status that a received error reports: its code, and its text as the peer wrote it.
[[nodiscard]] absl::Status StatusOf(const ErrorFrame& error);

// Returns Unimplemented if the type or version is unknown, InvalidArgument if anything else is
// wrong.  After an error the caller must not read from the connection any more.
[[nodiscard]] absl::StatusOr<Frame> DecodeFrame(std::span<const std::byte> packet);

}  // namespace larder
