// What the sideband withstands: wrong answers, garbage, uninvited descriptors, and clients that ask
// for too much or are too slow.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <random>

#include "server/connections/passed_rights.h"
#include "tests/server/connections/lingering_socket.h"
#include "tests/server/processes/sideband_fixture.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST_F(SidebandTest, WrongNonce) {
  Start();
  RawClient raw(options_.path);
  raw.Send(HelloFrame{});
  auto challenge = raw.Receive();
  ASSERT_TRUE(challenge);
  Nonce nonce = std::get<ChallengeFrame>(*challenge).nonce;
  nonce[15] ^= std::byte{1};
  raw.Send(ChallengeReplyFrame{.nonce = nonce}, {.descriptor = -1, .credentials = true});
  EXPECT_EQ(raw.ErrorCode(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(raw.Closed());
  EXPECT_EQ(counters().wrong_answer, 1u);
}

TEST_F(SidebandTest, FramesOutOfTurnEndTheConnection) {
  Start();
  const Frame all[] = {
      HelloFrame{},          ChallengeFrame{},
      ChallengeReplyFrame{}, WelcomeFrame{},
      MapSlabFrame{},        MapSessionPageFrame{},
      StagingOkFrame{},      CleanFrame{},
      CleanOkFrame{},        DropStagingFrame{},
      DropStagingOkFrame{},  MakeStagingFrame{},
      StagingMadeFrame{},    ErrorFrame{.code = absl::StatusCode::kInternal, .text = "x"}};
  for (const Frame& frame : all) {
    const FrameType type = TypeOf(frame);
    SCOPED_TRACE(ToString(type));
    if (type != FrameType::kHello) {
      RawClient first(options_.path);
      first.Send(frame);
      EXPECT_NE(first.ErrorCode(), absl::StatusCode::kOk);
      EXPECT_TRUE(first.Closed());
    }
    if (type != FrameType::kChallengeReply) {
      RawClient second(options_.path);
      second.Send(HelloFrame{});
      ASSERT_TRUE(second.Receive());
      second.Send(frame);
      EXPECT_NE(second.ErrorCode(), absl::StatusCode::kOk);
      EXPECT_TRUE(second.Closed());
    }
    const bool request = type == FrameType::kMapSlab || type == FrameType::kMapSessionPage ||
                         type == FrameType::kClean || type == FrameType::kDropStaging ||
                         type == FrameType::kMakeStaging;
    if (!request) {
      RawClient third(options_.path);
      ASSERT_TRUE(third.Welcome());
      third.Send(frame);
      EXPECT_NE(third.ErrorCode(), absl::StatusCode::kOk);
      EXPECT_TRUE(third.Closed());
    }
  }
  EXPECT_TRUE(NoneOpen());
  EXPECT_EQ(processes_->counts().processes, 0u);
}

// The number of descriptors that the daemon may have in flight is limited, and an answer that is
// not read keeps one of them.
TEST_F(SidebandTest, DescriptorsThatAreNotReadEndTheConnection) {
  Start();
  RawClient raw(options_.path);
  ASSERT_TRUE(raw.Welcome());
  for (int i = 0; i < 20; ++i)
    raw.Send(MapSlabFrame{.slab = SlabId{0}, .writable = false},
             {.descriptor = -1, .credentials = true});
  ASSERT_TRUE(Eventually([&] { return counters().unread_answers == 1u; }));
  EXPECT_LE(counters().slabs_read, 4u);
  size_t answered = 0;
  for (auto frame = raw.Receive(); frame && std::holds_alternative<SlabFrame>(*frame);
       frame = raw.Receive())
    ++answered;
  EXPECT_GE(answered, 1u);
  EXPECT_LE(answered, counters().slabs_read);
  EXPECT_TRUE(raw.Closed());
  // A client that reads each answer before it asks again gets as many as it likes.
  RawClient honest(options_.path);
  ASSERT_TRUE(honest.Welcome());
  for (int i = 0; i < 100; ++i) {
    honest.Send(MapSlabFrame{.slab = SlabId{0}, .writable = false},
                {.descriptor = -1, .credentials = true});
    const auto frame = honest.Receive();
    ASSERT_TRUE(frame && std::holds_alternative<SlabFrame>(*frame)) << i;
  }
}

TEST_F(SidebandTest, RefusesPacketsThatAreNotFrames) {
  Start();
  const std::vector<std::byte> oversize(kFrameBytesMax + 1);
  const std::vector<std::byte> huge(100'000);
  const std::span<const std::byte> nothing;
  for (const bool welcomed : {false, true}) {
    for (const auto bytes : {nothing, std::span(oversize), std::span(huge)}) {
      SCOPED_TRACE(bytes.size());
      RawClient raw(options_.path);
      if (welcomed) {
        ASSERT_TRUE(raw.Welcome());
      }
      ASSERT_TRUE(raw.SendBytes(bytes));
      EXPECT_EQ(raw.ErrorCode(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(raw.Closed());
    }
  }
  EXPECT_EQ(counters().bad_packets, 6u);
}

TEST_F(SidebandTest, GarbageNeverStopsTheServer) {
  Start();
  const size_t before = OpenDescriptors();
  std::mt19937 random(20240607);
  for (int i = 0; i < 400; ++i) {
    RawClient raw(options_.path);
    if (i % 2 == 0) {
      ASSERT_TRUE(raw.Welcome());
    }
    for (int packet = 0; packet < 4; ++packet) {
      std::vector<std::byte> bytes(random() % (kFrameBytesMax + 20));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      if (i % 4 < 2 && bytes.size() >= kFrameHeaderBytes) {  // with a valid header
        const auto type = static_cast<uint16_t>(random() % 17);
        const auto length = static_cast<uint32_t>(bytes.size() - kFrameHeaderBytes);
        std::memcpy(bytes.data(), &type, sizeof type);
        std::memcpy(bytes.data() + 2, &kSidebandVersion, sizeof kSidebandVersion);
        std::memcpy(bytes.data() + 4, &length, sizeof length);
      }
      raw.SendBytes(bytes, {.descriptor = random() % 3 == 0 ? 0 : -1});
    }
  }
  EXPECT_TRUE(NoneOpen());
  // Another thread closes the descriptors that arrived.
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before; }));
  EXPECT_NE(Connect(), nullptr);
}

TEST_F(SidebandTest, TheKernelRefusesDescriptorsBeforeTheWelcome) {
  if (!KernelRefusesRights()) GTEST_SKIP() << "the kernel has no SO_PASSRIGHTS";
  Start();
  const RawClient raw(options_.path);
  EXPECT_EQ(SendPacket(raw.socket(), EncodeFrame(HelloFrame{}).bytes(), {.descriptor = 0}),
            SendResult::kRefused);
  EXPECT_TRUE(raw.Welcome()) << "the refused packet must not have arrived";
}

// The same on a kernel that cannot refuse descriptors.
class SidebandOldKernelTest : public SidebandTest {
 protected:
  SidebandOldKernelTest() { PretendNoPassRights(true); }
  ~SidebandOldKernelTest() override { PretendNoPassRights(false); }
};

TEST_F(SidebandOldKernelTest, UninvitedDescriptorsAreClosed) {
  Start();
  const FileDescriptor memfd = Memfd(4096);
  const int fd = memfd.get();
  // One connection before the count opens the descriptors that are opened lazily.
  ASSERT_NE(Connect(), nullptr);
  ASSERT_TRUE(NoneOpen());
  const size_t before = OpenDescriptors();
  for (const size_t count : {1, 2, 3, 64}) {
    for (const bool welcomed : {false, true}) {
      SCOPED_TRACE(count);
      RawClient raw(options_.path);
      if (welcomed) {
        ASSERT_TRUE(raw.Welcome());
      }
      raw.SendMany(welcomed ? Frame(CleanFrame{}) : Frame(HelloFrame{}),
                   std::vector<int>(count, fd));
      EXPECT_EQ(raw.ErrorCode(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(raw.Closed());
    }
  }
  for (const size_t count : {2, 5}) {
    RawClient raw(options_.path);
    ASSERT_TRUE(raw.Welcome());
    raw.SendMany(StagingFrame{.bytes = ByteCount(4096)}, std::vector<int>(count, fd));
    EXPECT_EQ(raw.ErrorCode(), absl::StatusCode::kInvalidArgument);
  }
  RawClient none(options_.path);
  ASSERT_TRUE(none.Welcome());
  none.Send(StagingFrame{.bytes = ByteCount(4096)});
  EXPECT_EQ(none.ErrorCode(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(none.Closed());
  EXPECT_EQ(counters().bad_descriptors, 11u);
  EXPECT_TRUE(NoneOpen());
  // The one more is `none`, our own.  Another thread closes the descriptors that arrived.
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before + 1; }));
  EXPECT_EQ(staging_.counts().segments, 0u);
}

TEST_F(SidebandTest, DescriptorsThatAreNotMemoryAreNotKept) {
  Start();
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const FileDescriptor ends[] = {FileDescriptor(pipes[0]), FileDescriptor(pipes[1])};
  const FileDescriptor file(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  for (const int fd : {ends[0].get(), file.get()}) {
    RawClient raw(options_.path);
    ASSERT_TRUE(raw.Welcome());
    ASSERT_TRUE(raw.Send(ShareMemoryFrame{.bytes = ByteCount(4096)}, {.descriptor = fd}));
    EXPECT_EQ(raw.ErrorCode(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(raw.Closed());
  }
  EXPECT_EQ(counters().bad_descriptors, 2u);
  EXPECT_EQ(sideband_->device_shares(), 0u);
}

// A descriptor whose close blocks, sent at each point of the protocol at which one can arrive.
TEST_F(SidebandOldKernelTest, ADescriptorWithABlockingCloseDelaysNoOtherConnection) {
  constexpr int kLinger_s = 20;
  Start();
  const auto send_and_go = [&](bool welcomed, const Frame& frame, size_t before) {
    RawClient attacker(options_.path);
    if (welcomed) {
      ASSERT_TRUE(attacker.Welcome());
    }
    // With `before`, the descriptor stays unread behind a packet that ends the connection.
    for (size_t i = 0; i < before; ++i) attacker.Send(ChallengeFrame{});
    LingeringSocket hurts(kLinger_s);
    const EncodedFrame packet = EncodeFrame(frame);
    const std::string bytes(reinterpret_cast<const char*>(packet.bytes().data()),
                            packet.bytes().size());
    const bool sent = hurts.SendTo(attacker.socket(), bytes);
    EXPECT_TRUE(sent || before > 0);  // with `before`, the connection may have ended already
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_NE(Connect(), nullptr);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(kLinger_s / 2));
  };
  for (const size_t before : {0, 1}) {
    send_and_go(false, HelloFrame{}, before);
    send_and_go(true, CleanFrame{}, before);
    send_and_go(true, ShareMemoryFrame{.bytes = ByteCount(4096)}, before);
    send_and_go(true, StagingFrame{.bytes = ByteCount(4096)}, before);
  }
  EXPECT_TRUE(NoneOpen());
}

TEST_F(SidebandTest, ConnectionLimits) {
  options_.connections = {.all = 3, .per_uid = 2, .per_process = 2};
  Start();
  auto one = Connect();
  const RawClient two(options_.path);  // counts from the moment it connects
  const auto refused = SidebandClient::Connect(options_.path, kPatience);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  one.reset();
  EXPECT_TRUE(Eventually([&] { return counters().connections_open == 1; }));
  EXPECT_NE(Connect(), nullptr);
  EXPECT_EQ(counters().over_limit, 1u);
}

TEST_F(SidebandTest, AProcessGetsAPartOfItsUidsConnections) {
  options_.connections = {.all = 8, .per_uid = 8, .per_process = 2};
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    CHILD_CHECK(SidebandClient::Connect(options_.path, kPatience).ok());
  });
  Start();
  const auto one = Connect();
  const auto two = Connect();
  const auto refused = SidebandClient::Connect(options_.path, kPatience);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0) << "another process of the same uid still connects";
}

TEST_F(SidebandTest, TheTotalLimitHoldsForOtherUids) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid";
  options_.connections.all = 1;
  options_.mode = 0666;
  ChildProcess child(
      [&](const Line& line) {
        CHILD_CHECK(line.Hear());
        CHILD_CHECK(SidebandClient::Connect(options_.path, kPatience).status().code() ==
                    absl::StatusCode::kResourceExhausted);
      },
      kStranger);
  Start();
  const auto one = Connect();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(SidebandTest, HandshakeHasADeadline) {
  options_.handshake_deadline = milliseconds(500);
  Start();
  RawClient silent(options_.path);
  EXPECT_EQ(silent.ErrorCode(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(silent.Closed());
  RawClient halfway(options_.path);
  halfway.Send(HelloFrame{});
  ASSERT_TRUE(halfway.Receive());
  EXPECT_EQ(halfway.ErrorCode(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(counters().handshake_late, 2u);
  EXPECT_TRUE(NoneOpen());
}

TEST_F(SidebandTest, AClientThatDoesNotReadIsDisconnected) {
  Start();
  const size_t before = OpenDescriptors();
  {
    RawClient raw(options_.path);
    ASSERT_TRUE(raw.Welcome());
    const Frame request = MapSlabFrame{.slab = SlabId{0}, .writable = false};
    EXPECT_TRUE(Eventually([&] {
      raw.Send(request);
      return counters().unread_answers == 1;
    }));
    // This leaves fewer descriptors in flight than would exhaust the daemon's allowance.
    EXPECT_LT(counters().slabs_read, 64u);
  }
  EXPECT_TRUE(NoneOpen());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(SidebandTest, ServesAgainAfterRunningOutOfDescriptors) {
  ChildProcess child([&](const Line& line) {
    while (line.Hear()) {
      line.Tell(
          static_cast<uint64_t>(SidebandClient::Connect(options_.path, kPatience).status().code()));
    }
  });
  Start();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit low{.rlim_cur = OpenDescriptors() + 40, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<FileDescriptor> hog;
  for (int fd = dup(0); fd >= 0; fd = dup(0)) hog.emplace_back(fd);
  child.line().Tell(1);
  // The client is refused at once, and does not wait for its own deadline.
  EXPECT_EQ(child.line().Hear(), static_cast<uint64_t>(absl::StatusCode::kUnavailable));
  hog.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  child.line().Tell(1);
  EXPECT_EQ(child.line().Hear(), static_cast<uint64_t>(absl::StatusCode::kOk));
  EXPECT_GE(counters().door.over_descriptors, 1u);
}

TEST_F(SidebandTest, ARefusalNamesTheOption) {
  options_.connections = {
      .all = 8, .per_uid = 8, .per_process = 1, .process_option = "--connections-per-process"};
  std::string told;
  Mutex mu;
  options_.report = [&](const std::string& text) {
    MutexLock lock(mu);
    told = text;
  };
  Start();
  const auto one = Connect();
  const auto refused = SidebandClient::Connect(options_.path, kPatience);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--connections-per-process"));
  MutexLock lock(mu);
  EXPECT_THAT(told, HasSubstr("sideband.sock: a connection of uid"));
  EXPECT_THAT(told, HasSubstr("--connections-per-process"));
}

// ---- A broken listening socket.

// Returns this process's listening socket at `path`, or -1 if there is none.
int ListenerAt(const std::string& path) {
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_un address{};
    size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sun_family == AF_UNIX && path == address.sun_path) return fd;
  }
  return -1;
}

TEST_F(SidebandTest, ARemovedSocketFileIsMadeAgain) {
  options_.mode = 0640;
  Start();
  const auto before = Connect();
  ASSERT_TRUE(std::filesystem::remove(options_.path));
  EXPECT_TRUE(Eventually([&] { return counters().door.reopened == 1; }));
  EXPECT_NE(Connect(), nullptr);
  struct stat file {};
  EXPECT_EQ(stat(options_.path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, mode_t{0640});
  EXPECT_TRUE(before->Clean(SessionId{1}).ok())
      << "the connection that was open before still works";
}

TEST_F(SidebandTest, AListenerThatWasShutDownIsReplaced) {
  Start();
  const auto before = Connect();
  const int listener = ListenerAt(options_.path);
  ASSERT_GE(listener, 0);
  ASSERT_EQ(shutdown(listener, SHUT_RDWR), 0);
  EXPECT_TRUE(Eventually([&] { return counters().door.reopened >= 1; }));
  for (int i = 0; i < 3; ++i) EXPECT_NE(Connect(), nullptr);
  EXPECT_TRUE(before->Clean(SessionId{1}).ok())
      << "the connection that was open before still works";
  EXPECT_EQ(counters().door.reopened, 1u);
}

TEST_F(SidebandTest, ReportsWhileNoClientCanConnect) {
  Start();
  EXPECT_TRUE(sideband_->Accepting());
  ASSERT_TRUE(std::filesystem::remove(options_.path));
  std::ofstream(options_.path) << "precious";
  EXPECT_TRUE(Eventually([&] { return !sideband_->Accepting(); }));
  EXPECT_TRUE(sideband_->Answered());
  ASSERT_TRUE(std::filesystem::remove(options_.path));
  EXPECT_TRUE(Eventually([&] { return sideband_->Accepting(); }));
  EXPECT_NE(Connect(), nullptr);
}

}  // namespace
}  // namespace larder
