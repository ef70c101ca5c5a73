// IncomingFrames against a model that knows where each message begins and ends.
#include "server/grpc/incoming_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "tests/server/grpc/http2_frames.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

constexpr size_t kCall = IncomingFrames::kCallBytes, kPiece = IncomingFrames::kPieceBytes;
constexpr size_t kBlock = 10'000;

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class IncomingFramesTest : public ::testing::Test {
 protected:
  IncomingFramesTest() { Receive(kClientPreface); }
  // gRPC reads the bytes into a new block.
  bool Receive(std::string_view bytes) {
    blocks_.emplace_back().reserve(kBlock);
    return Go(bytes);
  }
  // gRPC reads the bytes into the free part of the last block.
  bool Go(std::string_view bytes) {
    std::string& block = blocks_.back();
    const size_t at = block.size();
    block += bytes;
    EXPECT_LE(block.size(), kBlock);
    return frames_.OnReceived(AsBytes(std::string_view(block).substr(at)), kBlock - at);
  }
  void Send(std::string_view bytes) { frames_.OnSent(AsBytes(bytes)); }

  std::deque<std::string> blocks_;
  IncomingFrames frames_;
};

TEST_F(IncomingFramesTest, CountsOnlyIncompleteMessages) {
  const std::string message = Prefixed(std::string(1000, 'm'));
  Receive(Http2Frame(kSettingsFrame, 0, 0, std::string(6, '\0')) +
          Http2Frame(kHeadersFrame, 4, 1, "h"));
  EXPECT_EQ(frames_.held(), kCall);
  Receive(Http2Frame(kDataFrame, 0, 1, message.substr(0, 3)));
  EXPECT_EQ(frames_.held(), kCall + kPiece + kBlock);
  Receive(Http2Frame(kDataFrame, 0, 1, message.substr(3, 500)));
  EXPECT_EQ(frames_.held(), kCall + 2 * (kPiece + kBlock));
  Receive(Http2Frame(kDataFrame, 0, 1, message.substr(503)));
  EXPECT_EQ(frames_.held(), 0U) << "a whole message is not counted";
  Receive(Http2Frame(kDataFrame, 0, 1, message + message + message.substr(0, 7)));
  EXPECT_EQ(frames_.held(), kPiece + kBlock) << "only the third message is incomplete";
}

// A piece of a message keeps the whole block that gRPC read it into.  The block is counted once for
// each call.
TEST_F(IncomingFramesTest, CountsTheBlockOfEachPieceOncePerCall) {
  const std::string message = Prefixed(std::string(1000, 'm'));
  constexpr uint8_t kUnknown = 99;
  Receive(Http2Frame(kHeadersFrame, 4, 1, "h") + Http2Frame(kHeadersFrame, 4, 3, "h"));
  Receive(Http2Frame(kDataFrame, 0, 1, message.substr(0, 30)) +
          Http2Frame(kUnknown, 0, 0, std::string(5'000, 'x')));
  EXPECT_EQ(frames_.held(), 2 * kCall + kPiece + kBlock);
  Go(Http2Frame(kDataFrame, 0, 1, message.substr(30, 30)));
  EXPECT_EQ(frames_.held(), 2 * kCall + 2 * kPiece + kBlock)
      << "the same call keeps the same block, which is counted once";
  Go(Http2Frame(kDataFrame, 0, 3, message.substr(0, 30)));
  EXPECT_EQ(frames_.held(), 2 * kCall + 3 * kPiece + 2 * kBlock)
      << "a second call that keeps the block counts it again";
  Receive(Http2Frame(kUnknown, 0, 0, std::string(5'000, 'x')));
  EXPECT_EQ(frames_.held(), 2 * kCall + 3 * kPiece + 2 * kBlock);
}

TEST_F(IncomingFramesTest, CountsNothingOnceEitherSideEndedTheCall) {
  const std::string begun = Http2Frame(kHeadersFrame, 4, 1, "h") +
                            Http2Frame(kDataFrame, 0, 1, Prefixed("message").substr(0, 9));
  Receive(begun);
  ASSERT_GT(frames_.held(), kCall);
  // A frame that ends the call takes effect when all of the frame has been received.
  const std::string last = Http2Frame(kDataFrame, kEndStreamFlag, 1, std::string(100, 'x'));
  Receive(std::string_view(last).substr(0, 9));
  EXPECT_GT(frames_.held(), kCall);
  Receive(std::string_view(last).substr(9));
  EXPECT_EQ(frames_.held(), 0U);
  EXPECT_EQ(frames_.calls(), 0U);
  Receive(begun + Http2Frame(kResetFrame, 0, 1, std::string(4, '\0')));
  EXPECT_EQ(frames_.held(), 0U);
  Receive(Http2Frame(kHeadersFrame, 4 | kEndStreamFlag, 3, "of a call without a message"));
  EXPECT_EQ(frames_.calls(), 0U);
  Receive(begun);
  Send(Http2Frame(kHeadersFrame, 4, 1, "first") + Http2Frame(kDataFrame, 0, 1, Prefixed("answer")));
  EXPECT_GT(frames_.held(), kCall);
  Send(Http2Frame(kHeadersFrame, 4 | kEndStreamFlag, 1, "last"));
  EXPECT_EQ(frames_.held(), 0U);
  Receive(Http2Frame(kDataFrame, 0, 1, "of a call that is over"));
  EXPECT_EQ(frames_.held(), 0U);
}

TEST_F(IncomingFramesTest, RefusesHeadersThatExceedTheMaximum) {
  const std::string part(8'000, 'h');
  for (uint32_t stream = 1; stream < 100; stream += 2)
    ASSERT_TRUE(Receive(Http2Frame(kHeadersFrame, kEndHeadersFlag, stream, part)))
        << "the headers of each call are complete";
  EXPECT_TRUE(Receive(Http2Frame(kHeadersFrame, 0, 101, part)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Receive(Http2Frame(kContinuationFrame, 0, 101, part)));
  EXPECT_FALSE(Receive(Http2Frame(kContinuationFrame, 0, 101, part)));
}

// Random calls open, send messages of any length in frames of any length, and end, interleaved.
// The byte stream is cut at random places.
TEST(IncomingFramesModel, AgreesWithTheModelHoweverTheBytesAreCut) {
  std::mt19937 random(larder::testing::TestSeed());
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  struct Call {
    std::string left;    // bytes of the message that are still to be sent
    size_t begun = 0;    // bytes of the message that were sent
    bool is_new = true;  // no message of the call is complete yet
  };
  IncomingFrames frames;
  std::string text(kClientPreface);
  std::map<uint32_t, Call> open;  // by stream
  uint32_t next = 1;
  size_t reads = 0;
  const auto feed = [&] {
    for (size_t at = 0; at < text.size(); ++reads) {
      const std::string part = text.substr(at, 1 + below(40));
      ASSERT_TRUE(frames.OnReceived(AsBytes(part), part.size()));
      at += part.size();
    }
    text.clear();
  };
  for (int step = 0; step < 20'000; ++step) {
    const auto any = open.empty() ? open.end() : std::next(open.begin(), below(open.size()));
    if (any == open.end() || (open.size() < 8 && below(4) == 0)) {
      text += Http2Frame(kHeadersFrame, kEndHeadersFlag, next, std::string(below(60), 'h'));
      open[next] = {};
      next += 2;
    } else if (const size_t how = below(32); how < 4) {
      const uint32_t stream = any->first;
      if (how == 0) text += Http2Frame(kResetFrame, 0, stream, std::string(4, '\0'));
      if (how == 1) text += Http2Frame(kDataFrame, kEndStreamFlag, stream, "");
      if (how == 2)
        text += Http2Frame(kDataFrame, kEndStreamFlag, stream, std::string(below(90), 'e'));
      feed();
      if (how == 3)
        frames.OnSent(AsBytes(Http2Frame(kHeadersFrame, 4 | kEndStreamFlag, stream, "t")));
      open.erase(any);
    } else if (how == 4) {
      text += Http2Frame(99, 0, 0, std::string(below(90), 'u'));
    } else {
      Call& call = any->second;
      if (call.left.empty()) call.left = Prefixed(std::string(below(200), 'm'));
      const size_t length = std::min(call.left.size(), below(120));
      text += Http2Frame(kDataFrame, 0, any->first, call.left.substr(0, length));
      call.left.erase(0, length);
      call.begun += length;
      if (call.left.empty()) call.begun = 0;
      call.is_new &= !call.left.empty();
    }
    feed();
    size_t least = 0, begun = 0;
    for (const auto& [stream, call] : open) {
      least += (call.is_new ? kCall : 0) + call.begun;
      begun += call.begun;
    }
    ASSERT_EQ(frames.calls(), open.size()) << "step " << step;
    ASSERT_GE(frames.held(), least) << "step " << step;
    ASSERT_LE(frames.held(), least + reads * (kPiece + 40)) << "step " << step;
    if (begun == 0) {
      ASSERT_EQ(frames.held(), least) << "step " << step;
      reads = 0;
    }
  }
}

// IncomingFrames accepts any bytes, and its counts never go below zero.
TEST(IncomingFramesModel, AcceptsArbitraryBytes) {
  std::mt19937 random(larder::testing::TestSeed());
  for (int run = 0; run < 200; ++run) {
    IncomingFrames frames;
    std::string bytes(5'000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 3 == 0 ? random() : random() % 4);
    (void)frames.OnReceived(AsBytes(bytes), bytes.size());
    frames.OnSent(AsBytes(bytes));
    EXPECT_LE(frames.held(), frames.calls() * (kCall + bytes.size() * (kPiece + 1)));
  }
}

}  // namespace
}  // namespace larder
