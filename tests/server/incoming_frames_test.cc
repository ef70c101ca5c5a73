// IncomingFrames against a model that knows where each message begins and ends.
#include "server/incoming_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include "tests/server/http2_frames.h"
#include "tests/test_scale.h"

namespace larder {
namespace {

constexpr size_t kCall = IncomingFrames::kCallBytes, kPiece = IncomingFrames::kPieceBytes;

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class IncomingFramesTest : public ::testing::Test {
 protected:
  IncomingFramesTest() { Receive(kClientPreface); }
  void Receive(std::string_view bytes) { frames_.OnReceived(AsBytes(bytes)); }
  void Send(std::string_view bytes) { frames_.OnSent(AsBytes(bytes)); }
  IncomingFrames frames_;
};

TEST_F(IncomingFramesTest, HoldWhatIsNotWhole) {
  const std::string message = Prefixed(std::string(1000, 'm'));
  Receive(Frame(kSettingsFrame, 0, 0, std::string(6, '\0')) + Frame(kHeadersFrame, 4, 1, "h"));
  EXPECT_EQ(frames_.held(), kCall);
  Receive(Frame(kDataFrame, 0, 1, message.substr(0, 3)));
  EXPECT_EQ(frames_.held(), kCall + kPiece + 3);
  Receive(Frame(kDataFrame, 0, 1, message.substr(3, 500)));
  EXPECT_EQ(frames_.held(), kCall + 2 * kPiece + 503);
  Receive(Frame(kDataFrame, 0, 1, message.substr(503)));
  EXPECT_EQ(frames_.held(), kCall) << "it is whole";
  Receive(Frame(kDataFrame, 0, 1, message + message + message.substr(0, 7)));
  EXPECT_EQ(frames_.held(), kCall + kPiece + 7) << "of the third";
}

TEST_F(IncomingFramesTest, LetGoWhenEitherSideEndsTheCall) {
  const std::string begun =
      Frame(kHeadersFrame, 4, 1, "h") + Frame(kDataFrame, 0, 1, Prefixed("message").substr(0, 9));
  Receive(begun);
  ASSERT_GT(frames_.held(), kCall);
  // A frame that ends the call does so when all of it has come.
  const std::string last = Frame(kDataFrame, kEndStreamFlag, 1, std::string(100, 'x'));
  Receive(std::string_view(last).substr(0, 50));
  EXPECT_GT(frames_.held(), kCall);
  Receive(std::string_view(last).substr(50));
  EXPECT_EQ(frames_.held(), 0U);
  EXPECT_EQ(frames_.calls(), 0U);
  Receive(begun + Frame(kResetFrame, 0, 1, std::string(4, '\0')));
  EXPECT_EQ(frames_.held(), 0U);
  Receive(begun);
  Send(Frame(kHeadersFrame, 4, 1, "first") + Frame(kDataFrame, 0, 1, Prefixed("answer")));
  EXPECT_GT(frames_.held(), kCall);
  Send(Frame(kHeadersFrame, 4 | kEndStreamFlag, 1, "last"));
  EXPECT_EQ(frames_.held(), 0U);
  Receive(Frame(kDataFrame, 0, 1, "of a call that is over"));
  EXPECT_EQ(frames_.held(), 0U);
}

// Calls that open, send messages of all lengths in frames of all lengths, and end, in between one
// another; what comes is cut anywhere.
TEST(IncomingFramesModel, AgreesHoweverItIsCut) {
  std::mt19937 random(larder::testing::TestSeed());
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  IncomingFrames frames;
  std::string text(kClientPreface);
  std::map<uint32_t, std::string> open;  // by stream: what is left of its message
  std::map<uint32_t, size_t> begun;      // and how much of it has come
  uint32_t next = 1;
  size_t pieces = 0;
  const auto feed = [&] {
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::min(text.size() - at, 1 + below(40));
      frames.OnReceived(AsBytes(std::string_view(text).substr(at, length)));
      at += length;
      ++pieces;
    }
    text.clear();
  };
  for (int step = 0; step < 20'000; ++step) {
    const auto any = open.empty() ? open.end() : std::next(open.begin(), below(open.size()));
    if (any == open.end() || (open.size() < 8 && below(4) == 0)) {
      text += Frame(kHeadersFrame, 4, next, std::string(below(60), 'h'));
      open[next] = {};
      begun[next] = 0;
      next += 2;
    } else if (below(8) == 0) {
      const bool reset = below(2) == 0;
      text += reset ? Frame(kResetFrame, 0, any->first, std::string(4, '\0'))
                    : Frame(kDataFrame, kEndStreamFlag, any->first, "");
      begun.erase(any->first);
      open.erase(any);
    } else {
      if (any->second.empty()) any->second = Prefixed(std::string(below(200), 'm'));
      const size_t length = std::min(any->second.size(), below(120));
      text += Frame(kDataFrame, static_cast<uint8_t>(0), any->first, any->second.substr(0, length));
      any->second.erase(0, length);
      begun[any->first] += length;
      if (any->second.empty()) begun[any->first] = 0;
    }
    feed();
    size_t least = 0;
    for (const auto& [stream, bytes] : begun) least += kCall + bytes;
    ASSERT_EQ(frames.calls(), open.size()) << "step " << step;
    ASSERT_GE(frames.held(), least) << "step " << step;
    ASSERT_LE(frames.held(), least + pieces * kPiece) << "step " << step;
    if (std::ranges::all_of(begun, [](const auto& each) { return each.second == 0; })) {
      ASSERT_EQ(frames.held(), least) << "step " << step;
      pieces = 0;
    }
  }
}

// Whatever bytes come, it says something, and holds nothing when the connection's calls are few.
TEST(IncomingFramesModel, BearsAnyBytes) {
  std::mt19937 random(larder::testing::TestSeed());
  for (int run = 0; run < 200; ++run) {
    IncomingFrames frames;
    std::string bytes(5'000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 3 == 0 ? random() : random() % 4);
    frames.OnReceived(AsBytes(bytes));
    frames.OnSent(AsBytes(bytes));
    EXPECT_LE(frames.held(), frames.calls() * (kCall + 10'000) + bytes.size() * kPiece);
  }
}

}  // namespace
}  // namespace larder
