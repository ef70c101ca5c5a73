// Each frame body has one function, named Fields, that lists its fields in order.  FrameWriter runs
// it to write the body, FrameReader to read it.
#include "proto/frames/sideband_frames.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace larder {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie in memory");

namespace {
constexpr bool IsErrorCode(uint32_t number) { return number >= 1 && number <= 16; }
}  // namespace

class FrameWriter {
 public:
  template <class T>
  using Body = const T&;

  FrameWriter() : at_(kFrameHeaderBytes) {}

  template <class T>
  void Number(T value) {
    static_assert(std::is_unsigned_v<T>);
    Put(&value, sizeof value);
  }
  template <class T, size_t N>
  void Array(const std::array<T, N>& array) {
    Put(array.data(), N);
  }
  void Zeros(size_t count) { at_ += count; }  // the packet is zero-initialized
  void Bytes(ByteCount bytes) { Number(bytes.value()); }
  void Flag(bool flag) { Number(uint8_t{flag}); }
  void Slab(SlabId slab) { Number(uint32_t{static_cast<uint16_t>(slab)}); }
  void Text(const BootId& text) { Array(text); }
  void Code(absl::StatusCode code) {
    const auto number = static_cast<uint32_t>(code);
    Number(IsErrorCode(number) ? number : static_cast<uint32_t>(absl::StatusCode::kUnknown));
  }
  void Text(const std::string& text) {
    const size_t size = std::min(text.size(), kErrorTextBytesMax);
    Number(static_cast<uint32_t>(size));
    Put(text.data(), size);
  }

  [[nodiscard]] EncodedFrame Finish(FrameType type) {
    packet_.size_ = at_;
    at_ = 0;
    Number(static_cast<uint16_t>(type));
    Number(kSidebandVersion);
    Number(static_cast<uint32_t>(packet_.size_ - kFrameHeaderBytes));
    return packet_;
  }

 private:
  void Put(const void* from, size_t size) {
    std::memcpy(packet_.data_.data() + at_, from, size);
    at_ += size;
  }
  EncodedFrame packet_;
  size_t at_;
};

namespace {

// Reads fields and keeps the first error, for example that a field does not lie wholly within the
// bytes.  After an error, fields may have the values that they had before.
class FrameReader {
 public:
  template <class T>
  using Body = T&;

  explicit FrameReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  void Number(T& value) {
    static_assert(std::is_unsigned_v<T>);
    Get(&value, sizeof value);
  }
  template <class T, size_t N>
  void Array(std::array<T, N>& array) {
    Get(array.data(), N);
  }
  void Zeros(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      uint8_t byte = 0;
      Number(byte);
      if (byte != 0) Wrong("reserved bytes are not zero");
    }
  }
  void Bytes(ByteCount& bytes) {
    uint64_t value = 0;
    Number(value);
    bytes = ByteCount(value);
  }
  void Flag(bool& flag) {
    uint8_t byte = 0;
    Number(byte);
    if (byte > 1) Wrong("a flag is neither 0 nor 1");
    flag = byte == 1;
  }
  void Slab(SlabId& slab) {
    uint32_t number = 0;
    Number(number);
    if (number > UINT16_MAX) Wrong("the slab number is above 65535");
    slab = static_cast<SlabId>(number);
  }
  void Text(BootId& text) {
    Array(text);
    if (!std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; })) {
      Wrong("the boot id is not printable ASCII");
    }
  }
  void Code(absl::StatusCode& code) {
    uint32_t number = 0;
    Number(number);
    if (!IsErrorCode(number)) Wrong("the code is not an error code (1 to 16)");
    code = static_cast<absl::StatusCode>(number);
  }
  void Text(std::string& text) {
    uint32_t size = 0;
    Number(size);
    if (size > kErrorTextBytesMax || size > bytes_.size()) return Wrong("the text is too long");
    text.resize(size);
    Get(text.data(), size);
  }

  // Returns nullptr if there was no error and no byte is left, otherwise the first error.
  [[nodiscard]] const char* Finish() {
    if (!bytes_.empty()) Wrong("the body is too long");
    return wrong_;
  }

 private:
  void Get(void* to, size_t size) {
    if (size > bytes_.size()) {
      bytes_ = {};
      return Wrong("the body is too short");
    }
    if (size == 0) return;
    std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  void Wrong(const char* what) {
    if (wrong_ == nullptr) wrong_ = what;
  }
  std::span<const std::byte> bytes_;
  const char* wrong_ = nullptr;
};

// One function for each frame body: its fields, in the order of docs/format.md.
template <class Io>
void Fields(Io& io, typename Io::template Body<HelloFrame> body) {
  io.Number(body.flags);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<ChallengeFrame> body) {
  io.Array(body.nonce);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<ChallengeReplyFrame> body) {
  io.Array(body.nonce);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<WelcomeFrame> body) {
  io.Array(body.token);
  io.Number(body.process.value);
  io.Bytes(body.slab_bytes);
  io.Flag(body.writable);
  io.Zeros(7);
  io.Text(body.boot_id);
  io.Zeros(4);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<MapSlabFrame> body) {
  io.Slab(body.slab);
  io.Flag(body.writable);
  io.Zeros(3);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<SlabFrame> body) {
  io.Slab(body.slab);
  io.Flag(body.writable);
  io.Zeros(3);
  io.Bytes(body.bytes);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<MapSessionPageFrame> body) {
  io.Number(body.session.value);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<SessionPageFrame> body) {
  io.Number(body.session.value);
  io.Bytes(body.bytes);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<StagingFrame> body) {
  io.Bytes(body.bytes);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<StagingOkFrame> body) {
  io.Number(body.staging_id);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<CleanFrame> body) {
  io.Number(body.session.value);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<CleanOkFrame> body) {
  io.Bytes(body.released);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<ErrorFrame> body) {
  io.Code(body.code);
  io.Text(body.text);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<DropStagingFrame> body) {
  io.Number(body.staging_id);
}
template <class Io>
void Fields(Io&, typename Io::template Body<DropStagingOkFrame>) {}
template <class Io>
void Fields(Io& io, typename Io::template Body<OpenSessionFrame> body) {
  io.Number(body.flags);
}
template <class Io>
void Fields(Io&, typename Io::template Body<SessionSocketFrame>) {}
template <class Io>
void Fields(Io& io, typename Io::template Body<ShareMemoryFrame> body) {
  io.Bytes(body.bytes);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<ShareHandleFrame> body) {
  io.Bytes(body.bytes);
  io.Array(body.handle);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<SharedFrame> body) {
  io.Array(body.ticket);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<OpenSharedFrame> body) {
  io.Array(body.ticket);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<SharedMemoryFrame> body) {
  io.Bytes(body.bytes);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<SharedHandleFrame> body) {
  io.Bytes(body.bytes);
  io.Array(body.handle);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<DropSharedFrame> body) {
  io.Array(body.ticket);
}
template <class Io>
void Fields(Io&, typename Io::template Body<DropSharedOkFrame>) {}
template <class Io>
void Fields(Io& io, typename Io::template Body<MakeStagingFrame> body) {
  io.Bytes(body.bytes);
}
template <class Io>
void Fields(Io& io, typename Io::template Body<StagingMadeFrame> body) {
  io.Number(body.staging_id);
  io.Zeros(4);
  io.Bytes(body.bytes);
}

absl::Status Refuse(FrameType type, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("sideband frame ", ToString(type), ": ", what));
}

template <class Body>
absl::StatusOr<Frame> DecodeBody(std::span<const std::byte> bytes) {
  FrameReader in(bytes);
  Body body;
  Fields(in, body);
  if (const char* wrong = in.Finish(); wrong != nullptr) return Refuse(Body::kType, wrong);
  return Frame(std::move(body));
}

// The types are 1, 2, ... in the order of the variant, so a type less 1 is the index of its
// decoder.
template <size_t... I>
absl::StatusOr<Frame> DecodeByType(FrameType type, std::span<const std::byte> bytes,
                                   std::index_sequence<I...>) {
  using Decoder = absl::StatusOr<Frame> (*)(std::span<const std::byte>);
  static_assert(
      ((static_cast<size_t>(std::variant_alternative_t<I, Frame>::kType) == I + 1) && ...));
  static constexpr Decoder kDecoders[] = {&DecodeBody<std::variant_alternative_t<I, Frame>>...};
  return kDecoders[static_cast<size_t>(type) - 1](bytes);
}

}  // namespace

FrameType TypeOf(const Frame& frame) {
  return std::visit([](const auto& body) { return body.kType; }, frame);
}

const char* ToString(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return "HELLO";
    case FrameType::kChallenge:
      return "CHALLENGE";
    case FrameType::kChallengeReply:
      return "CHALLENGE_REPLY";
    case FrameType::kWelcome:
      return "WELCOME";
    case FrameType::kMapSlab:
      return "MAP_SLAB";
    case FrameType::kSlab:
      return "SLAB";
    case FrameType::kMapSessionPage:
      return "MAP_SESSION_PAGE";
    case FrameType::kSessionPage:
      return "SESSION_PAGE";
    case FrameType::kStaging:
      return "STAGING";
    case FrameType::kStagingOk:
      return "STAGING_OK";
    case FrameType::kClean:
      return "CLEAN";
    case FrameType::kCleanOk:
      return "CLEAN_OK";
    case FrameType::kError:
      return "ERROR";
    case FrameType::kDropStaging:
      return "DROP_STAGING";
    case FrameType::kDropStagingOk:
      return "DROP_STAGING_OK";
    case FrameType::kOpenSession:
      return "OPEN_SESSION";
    case FrameType::kSessionSocket:
      return "SESSION_SOCKET";
    case FrameType::kShareMemory:
      return "SHARE_MEMORY";
    case FrameType::kShareHandle:
      return "SHARE_HANDLE";
    case FrameType::kShared:
      return "SHARED";
    case FrameType::kOpenShared:
      return "OPEN_SHARED";
    case FrameType::kSharedMemory:
      return "SHARED_MEMORY";
    case FrameType::kSharedHandle:
      return "SHARED_HANDLE";
    case FrameType::kDropShared:
      return "DROP_SHARED";
    case FrameType::kDropSharedOk:
      return "DROP_SHARED_OK";
    case FrameType::kMakeStaging:
      return "MAKE_STAGING";
    case FrameType::kStagingMade:
      return "STAGING_MADE";
  }
  return "?";
}

bool CarriesDescriptor(FrameType type) {
  return type == FrameType::kSlab || type == FrameType::kSessionPage ||
         type == FrameType::kStaging || type == FrameType::kSessionSocket ||
         type == FrameType::kShareMemory || type == FrameType::kSharedMemory ||
         type == FrameType::kStagingMade;
}

EncodedFrame EncodeFrame(const Frame& frame) {
  FrameWriter out;
  std::visit([&out](const auto& body) { Fields(out, body); }, frame);
  return out.Finish(TypeOf(frame));
}

ErrorFrame ErrorOf(const absl::Status& status) {
  return {.code = status.code(),
          .text = std::string(status.message().substr(0, kErrorTextBytesMax))};
}

absl::Status StatusOf(const ErrorFrame& error) { return absl::Status(error.code, error.text); }

absl::StatusOr<Frame> DecodeFrame(std::span<const std::byte> packet) {
  if (packet.size() < kFrameHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("sideband packet of ", packet.size(), " bytes is shorter than a header"));
  }
  uint16_t type = 0;
  uint16_t version = 0;
  uint32_t length = 0;
  FrameReader header(packet.first(kFrameHeaderBytes));
  header.Number(type);
  header.Number(version);
  header.Number(length);
  if (version != kSidebandVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "sideband version ", version, " is unknown; this end knows version ", kSidebandVersion));
  }
  if (type < 1 || type > std::variant_size_v<Frame>) {
    return absl::UnimplementedError(absl::StrCat("sideband frame type ", type, " is unknown"));
  }
  const auto known = static_cast<FrameType>(type);
  const auto body = packet.subspan(kFrameHeaderBytes);
  if (length != body.size()) return Refuse(known, "its length field does not match the packet");
  return DecodeByType(known, body, std::make_index_sequence<std::variant_size_v<Frame>>());
}

}  // namespace larder
