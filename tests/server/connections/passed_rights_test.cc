// Descriptors that peers send uninvited: the kernel refuses them, or, as on a kernel that cannot,
// they are detected before anything is read and another thread closes them.
#include "server/connections/passed_rights.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/connections/descriptor_budget.h"
#include "server/connections/descriptor_closer.h"
#include "server/grpc/guarded_calls.h"
#include "tests/server/connections/lingering_socket.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/send_rights.h"

namespace larder {
namespace {

using std::chrono::seconds;
using Time = std::chrono::steady_clock;

constexpr int kLinger_s = 20;

struct Pair {
  explicit Pair(int type) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
    ours = FileDescriptor(ends[0]);
    theirs = FileDescriptor(ends[1]);
  }
  FileDescriptor ours, theirs;
};

// Closes a socket whose descriptors the kernel does not refuse.  Returns how many the closer took.
uint64_t TakenByClosing(FileDescriptor socket) {
  const uint64_t before = DescriptorCloser::OfProcess().counts().taken;
  CloseSocket(std::move(socket), false);
  return DescriptorCloser::OfProcess().counts().taken - before;
}

TEST(PassedRightsTest, TheKernelRefusesDescriptorsWhereItCan) {
  if (!KernelRefusesRights()) GTEST_SKIP() << "the kernel has no SO_PASSRIGHTS";
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const Pair pair(type);
    EXPECT_TRUE(RefuseRights(pair.ours.get()));
    EXPECT_EQ(SendRights(pair.theirs.get(), "x", {0}), EPERM);
    AllowRights(pair.ours.get());
    EXPECT_EQ(SendRights(pair.theirs.get(), "x", {0}), 0);
  }
}

class OldKernelTest : public ::testing::Test {
 protected:
  void SetUp() override { PretendNoPassRights(true); }
  void TearDown() override { PretendNoPassRights(false); }

  // Sends the bytes with a descriptor whose close blocks the thread that drops it.
  static void SendHurting(const FileDescriptor& to, std::string_view bytes,
                          LingeringSocket& socket) {
    ASSERT_TRUE(socket.SendTo(to.get(), bytes));
  }
  void ExpectQuick() const { EXPECT_LT(Time::now() - begun_, seconds(kLinger_s / 2)); }

  const Time::time_point begun_ = Time::now();
};

TEST_F(OldKernelTest, AStreamIsReadUpToTheDescriptors) {
  Pair pair(SOCK_STREAM);
  ASSERT_FALSE(RefuseRights(pair.ours.get()));
  std::array<std::byte, 64> room;
  EXPECT_EQ(ReceiveStream(pair.ours.get(), room, false), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(write(pair.theirs.get(), "abc", 3), 3);
  EXPECT_FALSE(StreamCarriesRights(pair.ours.get()));
  EXPECT_EQ(ReceiveStream(pair.ours.get(), room, false), 3);
  ASSERT_EQ(write(pair.theirs.get(), "abc", 3), 3);
  LingeringSocket hurts(kLinger_s);
  SendHurting(pair.theirs, "d", hurts);
  EXPECT_TRUE(StreamCarriesRights(pair.ours.get()));
  EXPECT_EQ(ReceiveStream(pair.ours.get(), room, false), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(TakenByClosing(std::move(pair.ours)), 1u);
  ExpectQuick();
}

TEST_F(OldKernelTest, TheEndOfAStreamIsNotMistakenForDescriptors) {
  Pair pair(SOCK_STREAM);
  ASSERT_EQ(write(pair.theirs.get(), "abc", 3), 3);
  pair.theirs = FileDescriptor();
  std::array<std::byte, 64> room;
  EXPECT_EQ(ReceiveStream(pair.ours.get(), room, false), 3);
  EXPECT_EQ(ReceiveStream(pair.ours.get(), room, false), 0);
  EXPECT_EQ(TakenByClosing(std::move(pair.ours)), 0u) << "the stream carried no descriptors";
}

// The descriptors are found behind empty packets and behind packets that the peer sent before it
// closed its end.
TEST_F(OldKernelTest, DescriptorsAreFoundInEveryQueuedPacket) {
  Pair pair(SOCK_SEQPACKET);
  EXPECT_FALSE(PacketCarriesRights(pair.ours.get()));
  ASSERT_EQ(send(pair.theirs.get(), "abc", 3, 0), 3);
  ASSERT_EQ(send(pair.theirs.get(), "", 0, 0), 0);
  LingeringSocket hurts(kLinger_s);
  SendHurting(pair.theirs, "", hurts);
  EXPECT_FALSE(PacketCarriesRights(pair.ours.get())) << "the next packet carries none";
  pair.theirs = FileDescriptor();
  EXPECT_EQ(TakenByClosing(std::move(pair.ours)), 1u);
  ExpectQuick();
}

// The same with descriptors that are sent along with an out-of-band byte.
class OutOfBandTest : public OldKernelTest {
 protected:
  void SetUp() override {
    OldKernelTest::SetUp();
    const Pair pair(SOCK_STREAM);
    if (send(pair.theirs.get(), "x", 1, MSG_OOB) != 1) GTEST_SKIP() << "the kernel has no MSG_OOB";
  }
  static void SendHurtingOutOfBand(const Pair& pair, LingeringSocket& socket) {
    ASSERT_TRUE(socket.SendTo(pair.theirs.get(), "!", MSG_OOB));
  }
};

TEST_F(OutOfBandTest, AStreamIsReadUpToTheDescriptors) {
  Pair pair(SOCK_STREAM);
  ASSERT_FALSE(RefuseRights(pair.ours.get()));
  ASSERT_EQ(write(pair.theirs.get(), "abc", 3), 3);
  LingeringSocket hurts(kLinger_s);
  SendHurtingOutOfBand(pair, hurts);
  ASSERT_EQ(write(pair.theirs.get(), "def", 3), 3);
  EXPECT_TRUE(StreamCarriesRights(pair.ours.get()))
      << "descriptors behind ordinary bytes are found as well";
  std::array<std::byte, 64> room;
  EXPECT_EQ(ReceiveStream(pair.ours.get(), room, false), 3);
  EXPECT_EQ(ReceiveStream(pair.ours.get(), room, false), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(TakenByClosing(std::move(pair.ours)), 1u);
  ExpectQuick();
}

// The socket was not prepared, like one that is refused right after it was accepted.
TEST_F(OutOfBandTest, CloseFindsThem) {
  for (const char* first : {"", "abc"}) {
    Pair pair(SOCK_STREAM);
    ASSERT_EQ(write(pair.theirs.get(), first, strlen(first)), static_cast<ssize_t>(strlen(first)));
    LingeringSocket hurts(kLinger_s);
    SendHurtingOutOfBand(pair, hurts);
    EXPECT_EQ(TakenByClosing(std::move(pair.ours)), 1u);
  }
  ExpectQuick();
}

TEST_F(OutOfBandTest, GuardedCallsFindThem) {
  if (!GuardsWork()) GTEST_SKIP() << "a sanitizer defines recvmsg and close";
  Pair pair(SOCK_STREAM);
  ASSERT_FALSE(RefuseRights(pair.ours.get()));
  const int fd = pair.ours.Release();
  ASSERT_TRUE(GuardSocket(fd));
  LingeringSocket hurts(kLinger_s);
  SendHurtingOutOfBand(pair, hurts);
  char room[8];
  iovec part{room, sizeof room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  EXPECT_EQ(recvmsg(fd, &message, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(close(fd), 0);
  ExpectQuick();
}

// There are more blocking closes than the closer has threads: no caller blocks, and every
// descriptor is closed in the end.
TEST_F(OldKernelTest, BlockingClosesDelayOnlyTheClosersThreads) {
  auto& closer = DescriptorCloser::OfProcess();
  const uint64_t before = closer.counts().taken;
  constexpr size_t kAll = DescriptorCloser::kThreadsMax + 136;
  const auto idle = [&] {
    const DescriptorCloser::Counts counts = closer.counts();
    return counts.closing + counts.waiting == 0;
  };
  ASSERT_TRUE(Eventually(idle));
  const size_t open = OpenDescriptors();
  std::vector<std::unique_ptr<LingeringSocket>> all;
  // Only the calls of CloseSocket are timed, because the test's own sockets linger as well.
  Time::duration longest{};
  for (size_t i = 0; i < kAll; ++i) {
    Pair pair(SOCK_STREAM);
    all.push_back(std::make_unique<LingeringSocket>(kLinger_s));
    SendHurting(pair.theirs, "x", *all.back());
    const Time::time_point from = Time::now();
    CloseSocket(std::move(pair.ours), false);
    longest = std::max(longest, Time::now() - from);
  }
  EXPECT_EQ(closer.counts().taken, before + kAll);
  EXPECT_TRUE(Eventually(idle));
  EXPECT_EQ(OpenDescriptors(), open + kAll) << "only the receiving ends remain open";
  EXPECT_LT(longest, seconds(kLinger_s / 10));
}

TEST_F(OldKernelTest, GuardedCallsProtectALibraryThatReadsAndCloses) {
  if (!GuardsWork()) GTEST_SKIP() << "a sanitizer defines recvmsg and close";
  Pair pair(SOCK_STREAM);
  const int fd = pair.ours.Release();
  ASSERT_TRUE(GuardSocket(fd));
  char first[2], second[8];
  iovec parts[] = {{first, sizeof first}, {second, sizeof second}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ASSERT_EQ(write(pair.theirs.get(), "abcd", 4), 4);
  EXPECT_EQ(recvmsg(fd, &message, MSG_DONTWAIT), 4);
  EXPECT_EQ(std::string(first, 2) + std::string(second, 2), "abcd");
  EXPECT_EQ(recvmsg(fd, &message, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  LingeringSocket hurts(kLinger_s);
  SendHurting(pair.theirs, "e", hurts);
  EXPECT_EQ(recvmsg(fd, &message, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNRESET);
  const uint64_t before = DescriptorCloser::OfProcess().counts().taken;
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(DescriptorCloser::OfProcess().counts().taken, before + 1);
  ExpectQuick();
}

}  // namespace
}  // namespace larder
