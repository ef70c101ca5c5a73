// Any bytes on a session socket, cut in any way, are frames or an error, and the same ones however
// they are cut.  The body of a frame is a message, an end or InvalidArgument.  The input begins
// with how it is cut: the number of sizes, then the sizes of the pieces, used in turn.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "proto/frames/session_codec.h"
#include "proto/frames/session_frames.h"
#include "proto/messages/messages.h"
#include "storage/check.h"
#include "tests/fuzz/byte_fuzz.h"
#include "tests/proto/sample_messages.h"

namespace larder {
namespace {

// Less than some inputs have, so that the limit itself is reached.
constexpr size_t kBodyBytesMax = 40'000;

// What a reader made of its bytes.
struct Outcome {
  struct Read {
    SessionFrameType type;
    std::string body;
    friend bool operator==(const Read&, const Read&) = default;
  };
  std::vector<Read> frames;
  absl::Status status;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

class Receiver {
 public:
  // `sizes` has the sizes of the pieces, used in turn; if it is empty, all bytes come at once.
  Outcome Run(std::string_view bytes, std::string_view sizes) {
    for (size_t turn = 0; !bytes.empty() && outcome_.status.ok(); ++turn) {
      const std::span<std::byte> room = reader_.Room();
      LARDER_CHECK(room.size() >= SessionFrameReader::kRoomBytes);
      size_t piece = bytes.size();
      if (!sizes.empty()) piece = 1 + static_cast<uint8_t>(sizes[turn % sizes.size()]);
      piece = std::min({piece, bytes.size(), room.size()});
      std::memcpy(room.data(), bytes.data(), piece);
      reader_.Take(piece);
      bytes.remove_prefix(piece);
      in_ += piece;
      TakeFrames();
    }
    return std::move(outcome_);
  }

 private:
  void TakeFrames() {
    for (;;) {
      const absl::StatusOr<std::optional<SessionFrame>> frame = reader_.Next();
      LARDER_CHECK(reader_.buffer_bytes() <= 3 * in_ + 2 * SessionFrameReader::kRoomBytes);
      LARDER_CHECK(reader_.awaited_bytes() <= kBodyBytesMax);
      LARDER_CHECK(reader_.awaited_bytes() == 0 || reader_.partial());
      if (!frame.ok()) {
        outcome_.status = frame.status();
        LARDER_CHECK(absl::IsInvalidArgument(frame.status()) ||
                     absl::IsUnimplemented(frame.status()));
        LARDER_CHECK(reader_.Next().status() == frame.status());
        return;
      }
      if (!frame->has_value()) return;
      const SessionFrame& whole = **frame;
      LARDER_CHECK(whole.body.size() <= kBodyBytesMax);
      out_ += kSessionFrameHeaderBytes + whole.body.size();
      LARDER_CHECK(out_ <= in_);
      outcome_.frames.push_back(
          {whole.type, {reinterpret_cast<const char*>(whole.body.data()), whole.body.size()}});
    }
  }

  SessionFrameReader reader_{kBodyBytesMax};
  Outcome outcome_;
  size_t in_ = 0;
  size_t out_ = 0;
};

template <class Message>
void ParseAndAppend(SessionCodec& codec, std::span<const std::byte> body) {
  Message message;
  const absl::Status status = codec.Parse(body, &message);
  if (!status.ok()) {
    LARDER_CHECK(absl::IsInvalidArgument(status));
    return;
  }
  std::string again;
  codec.Append(message, &again);
  Message same;
  LARDER_CHECK(
      codec.Parse(std::as_bytes(std::span(again)).subspan(kSessionFrameHeaderBytes), &same).ok());
  LARDER_CHECK(same == message);
}

void ParseEnd(std::span<const std::byte> body) {
  const absl::StatusOr<SessionEnd> end = SessionCodec::ParseEnd(body);
  LARDER_CHECK(end.ok() || absl::IsInvalidArgument(end.status()));
  if (!end.ok()) return;
  std::string again;
  SessionCodec::AppendEnd(*end, &again);
  LARDER_CHECK(again.size() <= 512);
  const absl::StatusOr<SessionEnd> same =
      SessionCodec::ParseEnd(std::as_bytes(std::span(again)).subspan(kSessionFrameHeaderBytes));
  LARDER_CHECK(same.ok() && same->status.code() == end->status.code() &&
               same->retry_after_ms == end->retry_after_ms);
}

// Returns the number of frames.
size_t Run(std::string_view input) {
  const google::protobuf::LogSilencer quiet;  // or it prints every string that is not UTF-8
  if (input.empty()) return 0;
  const std::string_view sizes = input.substr(1, static_cast<uint8_t>(input[0]) % 8);
  const std::string_view bytes = input.substr(1 + sizes.size());
  const Outcome outcome = Receiver().Run(bytes, sizes);
  LARDER_CHECK(outcome == Receiver().Run(bytes, {}));
  SessionCodec codec;  // one for all frames, as a session has
  for (const Outcome::Read& frame : outcome.frames) {
    const auto body = std::as_bytes(std::span(frame.body));
    if (frame.type == SessionFrameType::kEnd) {
      ParseEnd(body);
    } else {
      ParseAndAppend<wire::Up>(codec, body);
      ParseAndAppend<wire::Down>(codec, body);
    }
  }
  return outcome.frames.size();
}

std::string Seed(std::string_view sizes, std::string_view bytes) {
  std::string seed(1, static_cast<char>(sizes.size()));
  seed += sizes;
  seed += bytes;
  return seed;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  SessionCodec codec;
  std::string up, down, end, long_body;
  codec.Append(wire::sample::FullUp(), &up);
  codec.Append(wire::sample::FullDown(), &down);
  SessionCodec::AppendEnd({absl::ResourceExhaustedError("come back"), 500}, &end);
  const auto header = EncodeSessionFrameHeader(SessionFrameType::kMessage, kBodyBytesMax);
  long_body.assign(header.data(), header.size());
  long_body.resize(long_body.size() + kBodyBytesMax, 'x');
  std::vector<std::string> seeds = {Seed("", up + down + end), Seed("\x01\x7f", up + up),
                                    Seed("\xff", down + end), Seed("\x03\x09\x50", end + end),
                                    Seed("\xf0\x10", long_body + end)};
  for (const std::string& seed : seeds) LARDER_CHECK(Run(seed) >= 2);
  return seeds;
}

}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  larder::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
