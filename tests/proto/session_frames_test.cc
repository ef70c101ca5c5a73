#include "proto/frames/session_frames.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/frames/session_codec.h"
#include "tests/proto/sample_messages.h"

namespace larder {
namespace {

constexpr size_t kBodyBytesMax = wire::kMessageBytesMax;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::string Unhex(std::string hex) {
  std::erase(hex, ' ');
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::string Header(SessionFrameType type, size_t body_bytes) {
  const auto header = EncodeSessionFrameHeader(type, body_bytes);
  return {header.data(), header.size()};
}

struct Read {
  SessionFrameType type;
  std::string body;
  friend bool operator==(const Read&, const Read&) = default;
};

std::string FrameOf(const Read& read) { return Header(read.type, read.body.size()) + read.body; }

Read Copied(const SessionFrame& frame) {
  return {frame.type, {reinterpret_cast<const char*>(frame.body.data()), frame.body.size()}};
}

// Receives as recv does: as much as fits.  Returns the rest of `bytes`.
std::string_view Receive(SessionFrameReader& reader, std::string_view bytes) {
  const std::span<std::byte> room = reader.Room();
  EXPECT_GE(room.size(), SessionFrameReader::kRoomBytes);
  const size_t received = std::min(room.size(), bytes.size());
  std::memcpy(room.data(), bytes.data(), received);
  reader.Take(received);
  return bytes.substr(received);
}

// Returns all complete frames.
std::vector<Read> Drain(SessionFrameReader& reader) {
  std::vector<Read> frames;
  for (;;) {
    const auto frame = reader.Next();
    EXPECT_TRUE(frame.ok()) << frame.status();
    if (!frame.ok() || !frame->has_value()) return frames;
    frames.push_back(Copied(**frame));
  }
}

std::vector<Read> Feed(SessionFrameReader& reader, std::string_view bytes) {
  std::vector<Read> frames;
  while (!bytes.empty()) {
    bytes = Receive(reader, bytes);
    for (Read& frame : Drain(reader)) frames.push_back(std::move(frame));
  }
  return frames;
}

absl::StatusCode CodeOf(std::string_view bytes, size_t body_bytes_max = kBodyBytesMax) {
  SessionFrameReader reader(body_bytes_max);
  EXPECT_TRUE(Receive(reader, bytes).empty());
  return reader.Next().status().code();
}

// ---- Frames.

// Written by hand from docs/format.md: length, type, version.
TEST(SessionFrames, TheHeaderIsAsDocumented) {
  EXPECT_EQ(Header(SessionFrameType::kMessage, 0), Unhex("00000000 0100 0100"));
  EXPECT_EQ(Header(SessionFrameType::kMessage, 0x01020304), Unhex("04030201 0100 0100"));
  EXPECT_EQ(Header(SessionFrameType::kEnd, 5), Unhex("05000000 0200 0100"));
  SessionFrameReader reader(kBodyBytesMax);
  EXPECT_EQ(
      Feed(reader, Unhex("03000000 0100 0100 616263  02000000 0200 0100 6465")),
      (std::vector<Read>{{SessionFrameType::kMessage, "abc"}, {SessionFrameType::kEnd, "de"}}));
}

TEST(SessionFrames, FramesAreReadHoweverTheBytesAreCut) {
  const std::vector<Read> sent = {{SessionFrameType::kMessage, "first"},
                                  {SessionFrameType::kMessage, ""},
                                  {SessionFrameType::kEnd, "the last word"}};
  std::string bytes;
  for (const Read& frame : sent) bytes += FrameOf(frame);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    SessionFrameReader reader(kBodyBytesMax);
    std::vector<Read> read = Feed(reader, bytes.substr(0, cut));
    for (Read& frame : Feed(reader, bytes.substr(cut))) read.push_back(std::move(frame));
    EXPECT_EQ(read, sent) << "cut at " << cut;
    EXPECT_FALSE(reader.partial());
  }
  SessionFrameReader reader(kBodyBytesMax);
  std::vector<Read> read;
  for (const char byte : bytes) {
    for (Read& frame : Feed(reader, {&byte, 1})) read.push_back(std::move(frame));
  }
  EXPECT_EQ(read, sent) << "fed byte by byte";
}

TEST(SessionFrames, ManyFramesCanArriveAtOnce) {
  std::vector<Read> sent;
  std::string bytes;
  for (size_t i = 0; i < 2000; ++i) {  // more than the buffer, so that one frame crosses its end
    sent.push_back(
        {SessionFrameType::kMessage, std::string(i % 61, static_cast<char>('a' + i % 26))});
    bytes += FrameOf(sent.back());
  }
  ASSERT_GT(bytes.size(), 4 * SessionFrameReader::kRoomBytes);
  SessionFrameReader reader(kBodyBytesMax);
  EXPECT_EQ(Feed(reader, bytes), sent);
}

TEST(SessionFrames, ReportsHowManyBytesItWaitsFor) {
  const std::string bytes = FrameOf({SessionFrameType::kMessage, "body"});
  SessionFrameReader reader(kBodyBytesMax);
  EXPECT_FALSE(reader.partial());
  EXPECT_EQ(reader.awaited_bytes(), 0u);
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    EXPECT_TRUE(Feed(reader, {&bytes[i], 1}).empty());
    EXPECT_TRUE(reader.partial());
    // The length is unknown until the header is complete.
    EXPECT_EQ(reader.awaited_bytes(), i + 1 < kSessionFrameHeaderBytes ? 0u : 4u) << i;
  }
  EXPECT_EQ(Feed(reader, {&bytes.back(), 1}).size(), 1u);
  EXPECT_FALSE(reader.partial());
  EXPECT_EQ(reader.awaited_bytes(), 0u);
}

TEST(SessionFrames, AFrameMayHaveAnEmptyBody) {
  SessionFrameReader reader(kBodyBytesMax);
  EXPECT_EQ(Feed(reader, Header(SessionFrameType::kMessage, 0)),
            (std::vector<Read>{{SessionFrameType::kMessage, ""}}));
}

TEST(SessionFrames, LengthIsBounded) {
  const Read longest{SessionFrameType::kMessage, std::string(100, 'x')};
  SessionFrameReader reader(100);
  EXPECT_EQ(Feed(reader, FrameOf(longest)), std::vector<Read>{longest});
  // The header alone is refused; the reader does not wait for the rest.
  EXPECT_EQ(CodeOf(Header(SessionFrameType::kMessage, 101), 100), kInvalid);
  EXPECT_EQ(CodeOf(Header(SessionFrameType::kMessage, kBodyBytesMax + 1)), kInvalid);
  EXPECT_EQ(CodeOf(Header(SessionFrameType::kEnd, ~uint32_t{0})), kInvalid);
  EXPECT_EQ(CodeOf(Header(SessionFrameType::kMessage, kBodyBytesMax)), absl::StatusCode::kOk);
}

TEST(SessionFrames, UnknownTypesAndVersionsAreUnimplemented) {
  for (const char* type : {"0000", "0300", "0101", "0102", "ffff"})
    EXPECT_EQ(CodeOf(Unhex(absl::StrCat("00000000 ", type, " 0100"))), kUnimplemented) << type;
  for (const char* version : {"0000", "0200", "0101", "ffff"})
    EXPECT_EQ(CodeOf(Unhex(absl::StrCat("00000000 0100 ", version))), kUnimplemented) << version;
}

TEST(SessionFrames, NothingIsReadAfterAnError) {
  SessionFrameReader reader(kBodyBytesMax);
  EXPECT_TRUE(Receive(reader, Unhex("00000000 0900 0100") + FrameOf({SessionFrameType::kEnd, "x"}))
                  .empty());
  EXPECT_EQ(reader.Next().status().code(), kUnimplemented);
  EXPECT_EQ(reader.Next().status().code(), kUnimplemented);
}

// ---- The buffer.

TEST(SessionFrames, TheBufferGrowsOnlyWithReceivedBytes) {
  SessionFrameReader reader(kBodyBytesMax);
  EXPECT_EQ(reader.buffer_bytes(), 0u);
  EXPECT_TRUE(Feed(reader, Header(SessionFrameType::kMessage, kBodyBytesMax)).empty());
  EXPECT_EQ(reader.awaited_bytes(), kBodyBytesMax);
  // The header announces 16 MiB, and then a byte arrives from time to time.
  for (size_t came = kSessionFrameHeaderBytes; came < 100'000; ++came) {
    EXPECT_TRUE(Feed(reader, "x").empty());
    ASSERT_LE(reader.buffer_bytes(), 3 * came + 2 * SessionFrameReader::kRoomBytes) << came;
  }
}

TEST(SessionFrames, TheBufferShrinksAfterALargeFrame) {
  SessionFrameReader reader(kBodyBytesMax);
  const Read large{SessionFrameType::kMessage, std::string(1 << 20, 'x')};
  EXPECT_EQ(Feed(reader, FrameOf(large)), std::vector<Read>{large});
  EXPECT_GE(reader.buffer_bytes(), large.body.size());
  (void)reader.Room();
  EXPECT_EQ(reader.buffer_bytes(), SessionFrameReader::kRoomBytes);
}

// Without this, a sender that has always begun its next frame would keep the memory of its largest
// frame.
TEST(SessionFrames, TheBufferShrinksEvenIfTheNextFrameHasBegun) {
  SessionFrameReader reader(kBodyBytesMax);
  const std::string small = FrameOf({SessionFrameType::kMessage, "small"});
  std::string bytes = FrameOf({SessionFrameType::kMessage, std::string(1 << 20, 'x')});
  bytes += small[0];
  EXPECT_EQ(Feed(reader, bytes).size(), 1u);
  const std::string rest = small.substr(1) + small[0];
  // Enough frames to go through a small buffer several times.
  for (size_t came = 0; came < (4 << 20); came += rest.size())
    ASSERT_EQ(Feed(reader, rest).size(), 1u);
  EXPECT_TRUE(reader.partial());
  EXPECT_LE(reader.buffer_bytes(), 4 * SessionFrameReader::kRoomBytes);
}

// ---- Messages.

class SessionCodecTest : public ::testing::Test {
 protected:
  // Returns the single frame that `bytes` holds.
  static Read OnlyFrame(const std::string& bytes) {
    SessionFrameReader reader(kBodyBytesMax);
    std::vector<Read> frames = Feed(reader, bytes);
    EXPECT_EQ(frames.size(), 1u);
    EXPECT_FALSE(reader.partial());
    return frames.empty() ? Read{} : frames[0];
  }
  template <class Message>
  absl::StatusOr<Message> Parse(std::string_view body) {
    Message message;
    absl::Status status = codec_.Parse(std::as_bytes(std::span(body)), &message);
    if (!status.ok()) return status;
    return message;
  }
  template <class Message>
  Message Again(const Message& message) {
    std::string bytes;
    codec_.Append(message, &bytes);
    const Read frame = OnlyFrame(bytes);
    EXPECT_EQ(frame.type, SessionFrameType::kMessage);
    const absl::StatusOr<Message> parsed = Parse<Message>(frame.body);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.value_or(Message{});
  }
  static absl::StatusOr<SessionEnd> ParseEnd(std::string_view body) {
    return SessionCodec::ParseEnd(std::as_bytes(std::span(body)));
  }
  static SessionEnd Again(const SessionEnd& end) {
    std::string bytes;
    SessionCodec::AppendEnd(end, &bytes);
    const Read frame = OnlyFrame(bytes);
    EXPECT_EQ(frame.type, SessionFrameType::kEnd);
    const absl::StatusOr<SessionEnd> parsed = ParseEnd(frame.body);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.value_or(SessionEnd{absl::InternalError("")});
  }

  SessionCodec codec_;
};

TEST_F(SessionCodecTest, MessagesOfBothDirectionsRoundTrip) {
  for (int again = 0; again < 2; ++again) {  // the second time into memory that was used before
    EXPECT_EQ(Again(wire::sample::FullUp()), wire::sample::FullUp());
    EXPECT_EQ(Again(wire::sample::FullDown()), wire::sample::FullDown());
    EXPECT_EQ(Again(wire::Up{}), wire::Up{});
    EXPECT_EQ(Again(wire::Down{}), wire::Down{});
  }
}

TEST_F(SessionCodecTest, AppendKeepsExistingBytes) {
  std::string bytes;
  codec_.Append(wire::sample::FullUp(), &bytes);
  const std::string first = bytes;
  codec_.Append(wire::sample::FullDown(), &bytes);
  SessionCodec::AppendEnd({}, &bytes);
  EXPECT_EQ(bytes.substr(0, first.size()), first);
  SessionFrameReader reader(kBodyBytesMax);
  const std::vector<Read> frames = Feed(reader, bytes);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[2].type, SessionFrameType::kEnd);
}

TEST_F(SessionCodecTest, GarbageIsRefused) {
  for (const std::string& body :
       {std::string("\xff\xff\xff"), std::string("no message"), std::string("\x0a\x7f", 2)}) {
    EXPECT_EQ(Parse<wire::Up>(body).status().code(), kInvalid);
    EXPECT_EQ(Parse<wire::Down>(body).status().code(), kInvalid);
    EXPECT_EQ(ParseEnd(body).status().code(), kInvalid);
  }
  // A message that protobuf accepts but the contract does not: a hello without a name.
  wire::Up nameless;
  nameless.hello.emplace();
  std::string bytes;
  codec_.Append(nameless, &bytes);
  EXPECT_EQ(Parse<wire::Up>(OnlyFrame(bytes).body).status().code(), kInvalid);
  // After these errors the codec still works.
  EXPECT_EQ(Again(wire::sample::FullUp()), wire::sample::FullUp());
}

// ---- The end.

// Written by hand from engine.proto: code 8, "no", 300 ms.
TEST_F(SessionCodecTest, AnEndIsAsDocumented) {
  std::string bytes;
  SessionCodec::AppendEnd({absl::ResourceExhaustedError("no"), 300}, &bytes);
  EXPECT_EQ(bytes, Unhex("09000000 0200 0100  0808 12026e6f 18ac02"));
}

TEST_F(SessionCodecTest, EndsRoundTrip) {
  const SessionEnd peace = Again(SessionEnd{});
  EXPECT_TRUE(peace.status.ok());
  EXPECT_EQ(peace.retry_after_ms, 0u);
  const SessionEnd full = Again(SessionEnd{absl::ResourceExhaustedError("later"), 1234});
  EXPECT_EQ(full.status, absl::ResourceExhaustedError("later"));
  EXPECT_EQ(full.retry_after_ms, 1234u);
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(Again(SessionEnd{status}).status, status);
  }
}

TEST_F(SessionCodecTest, TextOfAnEndIsCut) {
  const std::string whole(256, 'x');
  EXPECT_EQ(Again(SessionEnd{absl::InternalError(whole)}).status.message(), whole);
  EXPECT_EQ(Again(SessionEnd{absl::InternalError(whole + "y")}).status.message(), whole);
  // The text is never cut within a character, which would make it invalid UTF-8.
  const std::string odd = std::string(255, 'x') + "\xc3\xa9";
  EXPECT_EQ(Again(SessionEnd{absl::InternalError(odd)}).status.message(), std::string(255, 'x'));
}

TEST_F(SessionCodecTest, AnUnknownCodeIsUnknown) {
  for (const char* body : {"0811", "08ffffffff0f"}) {
    const absl::StatusOr<SessionEnd> end = ParseEnd(Unhex(body));
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->status.code(), absl::StatusCode::kUnknown) << body;
  }
}

}  // namespace
}  // namespace larder
