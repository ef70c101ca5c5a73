// IncomingMessages on real sockets, which the test reads as gRPC does.
#include "server/grpc/incoming_messages.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/frames/file_descriptor.h"
#include "server/grpc/guarded_calls.h"
#include "server/grpc/incoming_frames.h"
#include "tests/server/grpc/http2_frames.h"

namespace larder {
namespace {

constexpr SocketPeer kFirst{.uid = 1, .pid = 10}, kSecond{.uid = 1, .pid = 20};
constexpr SocketPeer kOther{.uid = 2, .pid = 30};
// The overhead that is counted for a call that has begun, besides its message, and the part of a
// connection that is not counted.
constexpr size_t kOverhead = (20 << 10) + IncomingMessages::kUntoldBytes;

class IncomingMessagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!GuardsWork()) GTEST_SKIP() << "a sanitizer reads sockets itself";
  }

  // A watched connection and the client's first bytes on it.
  struct Connection {
    Connection(IncomingMessages& incoming, const SocketPeer& peer, std::atomic<uint64_t>& ended) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
      ours = FileDescriptor(ends[0]);
      theirs = FileDescriptor(ends[1]);
      incoming.Watch(ours.get(), peer, ended);
      Put(kClientPreface);
    }
    // The client sends the bytes and the server reads them.  Returns false if the read fails.
    bool Put(std::string_view bytes) {
      std::string room(4096, '\0');
      while (!bytes.empty()) {
        const std::string_view now = bytes.substr(0, room.size());
        if (send(theirs.get(), now.data(), now.size(), MSG_NOSIGNAL) < 0) return false;
        iovec part{room.data(), room.size()};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        if (recvmsg(ours.get(), &message, 0) <= 0) return false;
        bytes.remove_prefix(now.size());
      }
      return true;
    }
    // Begins a call and sends `bytes` of a message that is longer than that.
    bool Begin(size_t bytes) {
      next_ += 2;
      constexpr size_t kFrame = 16 << 10;
      const std::string message = Prefixed(std::string(2 * bytes, 'm')).substr(0, bytes);
      std::string text = Http2Frame(kHeadersFrame, 4, next_, "h");
      for (size_t at = 0; at < bytes; at += kFrame)
        text += Http2Frame(kDataFrame, 0, next_, message.substr(at, kFrame));
      return Put(text);
    }
    [[nodiscard]] bool Ended() const {
      char byte = 0;
      return recv(theirs.get(), &byte, 1, MSG_DONTWAIT) == 0;
    }
    FileDescriptor ours, theirs;
    uint32_t next_ = 1;
  };

  std::vector<std::pair<std::string, std::string>> told_;
  IncomingMessages incoming_{MiB(1), [this](const std::string& what, const std::string& why) {
                               told_.emplace_back(what, why);
                             }};
  std::atomic<uint64_t> ended_{0};
};

TEST_F(IncomingMessagesTest, EndsTheConnectionOfTheUserThatHoldsMost) {
  Connection small(incoming_, kFirst, ended_), large(incoming_, kFirst, ended_);
  Connection other(incoming_, kSecond, ended_);
  ASSERT_TRUE(small.Begin(250 << 10));
  ASSERT_TRUE(large.Begin(300 << 10));
  ASSERT_TRUE(other.Begin(350 << 10));
  EXPECT_EQ(ended_, 0U);
  EXPECT_NEAR(static_cast<double>(incoming_.held()), 900 << 10, 3 * kOverhead);
  // The next message of `other` is longer than either message of the first process, but that
  // process still holds more in total.
  ASSERT_TRUE(other.Begin(150 << 10))
      << "the connection of the user that holds most is ended instead";
  EXPECT_EQ(ended_, 1U);
  EXPECT_TRUE(large.Ended());
  EXPECT_FALSE(large.Put("x"));
  EXPECT_FALSE(small.Ended());
  EXPECT_NEAR(static_cast<double>(incoming_.held()), 750 << 10, 4 * kOverhead);
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_EQ(told_.front().first, "incoming_bytes uid 1");
  EXPECT_NE(told_.front().second.find("uid 1 pid 10"), std::string::npos) << told_.front().second;
  // Now `other` holds most.
  EXPECT_FALSE(other.Begin(400 << 10));
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(ended_, 2U);
}

// Without this rule, a user with many processes that each hold little would cause the connections
// of other users to be ended.
TEST_F(IncomingMessagesTest, ComparesUsersBeforeTheirProcesses) {
  std::deque<Connection> many;
  for (pid_t pid = 100; pid < 120; ++pid) {
    many.emplace_back(incoming_, SocketPeer{.uid = 1, .pid = pid}, ended_);
    ASSERT_TRUE(many.back().Begin(30 << 10));
  }
  Connection other(incoming_, kOther, ended_);
  ASSERT_TRUE(other.Begin(200 << 10));
  EXPECT_EQ(ended_, 0U);
  ASSERT_TRUE(other.Begin(200 << 10));
  EXPECT_GT(ended_, 0U);
  EXPECT_FALSE(other.Ended());
}

TEST_F(IncomingMessagesTest, EndlessHeadersEndTheConnection) {
  Connection one(incoming_, kFirst, ended_);
  const std::string part(10 << 10, 'h');
  ASSERT_TRUE(one.Put(Http2Frame(kHeadersFrame, 0, 1, part)));
  ASSERT_TRUE(one.Put(Http2Frame(kContinuationFrame, 0, 1, part)));
  EXPECT_FALSE(one.Put(Http2Frame(kContinuationFrame, 0, 1, part + part)));
  EXPECT_EQ(ended_, 1U);
  EXPECT_TRUE(one.Ended());
}

TEST_F(IncomingMessagesTest, AClosedConnectionHoldsNothing) {
  {
    Connection one(incoming_, kFirst, ended_);
    ASSERT_TRUE(one.Begin(500 << 10));
    EXPECT_GT(incoming_.held(), 500U << 10);
  }
  EXPECT_EQ(incoming_.held(), 0U);
}

TEST_F(IncomingMessagesTest, WholeMessagesHoldNothing) {
  Connection one(incoming_, kFirst, ended_);
  const std::string message = Prefixed(std::string(10 << 10, 'm'));
  for (uint32_t stream = 1; stream < 1'000; stream += 2) {
    ASSERT_TRUE(
        one.Put(Http2Frame(kHeadersFrame, 4, stream, "h") +
                Http2Frame(kDataFrame, stream % 4 == 1 ? kEndStreamFlag : 0, stream, message)));
  }
  EXPECT_EQ(incoming_.held(), 0U);
  EXPECT_EQ(ended_, 0U);
}

TEST_F(IncomingMessagesTest, AConnectionThatOutlivesTheCounterIsNotEnded) {
  auto incoming = std::make_unique<IncomingMessages>(MiB(1), nullptr);
  Connection one(*incoming, kFirst, ended_);
  ASSERT_TRUE(one.Begin(100 << 10));
  incoming.reset();
  EXPECT_TRUE(one.Begin(2 << 20));
  EXPECT_EQ(ended_, 0U);
}

}  // namespace
}  // namespace larder
