// Byte streams that break off or lie, and bytes on the socket files that belong to none of the
// daemon's protocols.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "gmock/gmock.h"
#include "proto/frames/file_descriptor.h"
#include "tests/e2e/support/die_with.h"
#include "tests/e2e/support/hostile_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

class HostileStream : public HostileTest {
 protected:
  // Sends these messages and half-closes.
  grpc::Status Send(const std::vector<v1::StoreBlocksRequest>& messages,
                    v1::StoreBlocksReply* reply) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stub = v1::Engine::NewStub(channel_);
    const auto stream = stub->StoreBlocks(&context, reply);
    for (const v1::StoreBlocksRequest& message : messages) {
      if (!stream->Write(message)) break;
    }
    stream->WritesDone();
    return stream->Finish();
  }
  void ExpectInvalid(const std::vector<v1::StoreBlocksRequest>& messages,
                     const std::string& words) {
    const uint64_t before = Invalid();
    v1::StoreBlocksReply reply;
    const grpc::Status status = Send(messages, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(words));
    EXPECT_EQ(Invalid(), before + 1);
  }
  static v1::StoreBlocksRequest OnlyData(const std::string& data) {
    v1::StoreBlocksRequest request;
    request.set_data(data);
    return request;
  }
  const TestBlock block_ = maker_.Block(1000);
};

// The daemon does not keep the memory of a large message while the session, over gRPC, is idle.
TEST_F(HostileStream, LargeMessagesOfIdleSessionsAreNotKept) {
  constexpr const char* kResident = "larder_resident_bytes{kind=\"anonymous\"}";
  constexpr int kSessions = kSessionsMax;  // as many as callers without a sideband may have
  std::vector<std::unique_ptr<RawSession>> sessions;
  for (int i = 0; i < kSessions; ++i) sessions.push_back(Attach(v1::WRITE_MODE_STREAM));
  for (const auto& session : sessions) Register(*session);
  v1::Up large;  // 4 MiB
  for (int i = 0; i < 64; ++i) large.add_damaged()->set_digests(std::string(4'096 * 16, 'x'));
  v1::Up after;
  after.add_acquires()->set_id(1);
  after.mutable_acquires(0)->set_digests(Packed(block_.digest));
  after.mutable_acquires(0)->set_what(v1::ACQUIRE_WHAT_PROMISE);
  const double before = daemon_->Metric(kResident);
  for (const auto& session : sessions) {
    ASSERT_TRUE(session->Send(large));
    ASSERT_TRUE(session->Ask(after).has_value()) << session->End().error_message();
  }
  const double grown = daemon_->Metric(kResident) - before;
  std::printf("resident: %.1f MiB more, for %d sessions\n", grown / (1 << 20), kSessions);
  EXPECT_LT(grown, kSessions * (6 << 20)) << "a session that keeps its message keeps 12 MiB";
  for (const auto& session : sessions) EXPECT_TRUE(session->Bye().ok());
}

// While a message is handled, it is charged to the memory that all callers share, whatever carries
// its session.
TEST(SessionMessages, WaitForMemoryAlsoOverGrpc) {
  DaemonProcess daemon(std::vector<std::string>{"--memory-limit", "32MiB"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  const auto sideband = SidebandClient::Connect(daemon.sideband_socket(), std::chrono::seconds(10));
  ASSERT_TRUE(sideband.ok()) << sideband.status();
  auto socket = (*sideband)->OpenSession();
  ASSERT_TRUE(socket.ok()) << socket.status();
  const auto keeps = std::make_unique<RawSocket>(*std::move(socket));
  v1::Up hello;
  hello.mutable_hello()->set_engine_id("keeps");
  hello.mutable_hello()->set_role(v1::ROLE_BOTH);
  hello.mutable_hello()->set_write_mode(v1::WRITE_MODE_STREAM);
  v1::Down attached;
  ASSERT_TRUE(keeps->Write(hello) && keeps->Read(&attached));
  const auto header = EncodeSessionFrameHeader(SessionFrameType::kMessage, 16 << 20);
  ASSERT_TRUE(keeps->WriteBytes(std::string(header.data(), header.size()) +
                                std::string(15 << 20, '\0')));  // the last MiB never comes
  const auto held = [&] { return daemon.Metric("larder_share_held{kind=\"message_bytes\"}"); };
  ASSERT_TRUE(Eventually([&] { return held() >= 24 << 20; }));
  RawSession waits(daemon.DataChannel(), {.engine_id = "waits"});
  v1::Up large;  // 4.3 MiB, for which twice as much is charged
  const std::string digests(4'096 * 16, 'x');
  for (int i = 0; i < 64; ++i) large.add_damaged()->set_digests(digests);
  for (uint64_t id = 1; id <= 4; ++id) {
    v1::Acquire* const acquire = large.add_acquires();
    acquire->set_id(id);
    acquire->set_what(v1::ACQUIRE_WHAT_PROMISE);
    acquire->set_digests(digests);
  }
  ASSERT_TRUE(waits.Send(large));
  EXPECT_TRUE(Eventually([&] { return daemon.Metric("larder_calls_overloaded_total") > 0; }))
      << "the message was handled without a charge";
  EXPECT_EQ(daemon.Metric("larder_share_held{kind=\"waiting_bytes\"}"), large.ByteSizeLong());
  keeps->Cancel();
  const std::optional<v1::Down> down = waits.Receive();
  ASSERT_TRUE(down) << waits.End().error_message();
  EXPECT_EQ(down->grants_size(), 4);
  EXPECT_EQ(daemon.Metric("larder_share_held{kind=\"waiting_bytes\"}"), 0);
  EXPECT_TRUE(waits.Bye().ok());
  EXPECT_TRUE(Eventually([&] { return held() == 0; }));
}

// The client cancels its call before, while or after the daemon hands a long message of the call to
// another thread.  Only AddressSanitizer shows a use after free.
TEST_F(HostileStream, ALongMessageOfACancelledCallLeavesNothing) {
  v1::Up large;
  large.add_damaged()->set_digests(std::string(4'096 * 16, 'x'));
  v1::Up hello;
  hello.mutable_hello()->set_engine_id("gone");
  hello.mutable_hello()->set_role(v1::ROLE_BOTH);
  hello.mutable_hello()->set_write_mode(v1::WRITE_MODE_STREAM);
  for (int turn = 0; turn < 300; ++turn) {
    grpc::ClientContext context;
    const auto stream = v1::Engine::NewStub(channel_)->Attach(&context);
    if (turn % 3 == 0) stream->Write(hello);
    stream->Write(large);
    if (turn % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50 * (turn % 10)));
    context.TryCancel();
    (void)stream->Finish();
  }
  EXPECT_TRUE(daemon_->alive()) << daemon_->errors();
  EXPECT_TRUE(Eventually(
      [&] { return daemon_->Metric("larder_share_held{kind=\"message_bytes\"}") == 0; }));
}

// The daemon refuses the calls.  The client does not end them itself, and its connection stays
// open.
TEST_F(HostileStream, NothingIsHeldOfACallThatTheDaemonEnds) {
  const auto stub = v1::Engine::NewStub(channel_);
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    context.AddMetadata("larder-token", "none");
    v1::StoreBlocksReply reply;
    EXPECT_EQ(stub->StoreBlocks(&context, &reply)->Finish().error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_TRUE(
      Eventually([&] { return daemon_->Metric("larder_incoming_bytes{what=\"held\"}") == 0; }));
}

TEST_F(HostileStream, AStoreWithoutAHeadIsRefused) {
  ExpectInvalid({OnlyData("bytes of nothing")}, "content and variant");
  ExpectInvalid({StoreHead(block_), StoreHead(block_)}, "content and variant");
}

TEST_F(HostileStream, AStoreOfBytesWithoutABlockIsRefused) {
  v1::StoreBlocksRequest head = StoreHead(block_);
  head.clear_block();
  ExpectInvalid({head, OnlyData("bytes of nothing")}, "no block was begun");
}

TEST_F(HostileStream, AStoreOfTooFewBytesIsRefused) {
  ExpectInvalid({StoreHead(block_), OnlyData(Data(block_).substr(1))}, "cut short");
  v1::StoreBlocksRequest next;
  *next.mutable_block() = StoreHead(block_).block();
  ExpectInvalid({StoreHead(block_), next}, "cut short");
}

TEST_F(HostileStream, AStoreOfTooManyBytesIsRefused) {
  ExpectInvalid({StoreHead(block_), OnlyData(Data(block_) + "x")}, "more bytes than");
}

TEST_F(HostileStream, AStoreOfATooLongPieceIsRefused) {
  ExpectInvalid({StoreHead(block_), OnlyData(std::string((1 << 20) + 1, 'x'))}, "data");
}

TEST_F(HostileStream, AStoreWithoutHashesIsRefused) {
  v1::StoreBlocksRequest head = StoreHead(block_);
  head.mutable_block()->mutable_segments()->clear_xxh3();
  ExpectInvalid({head}, "xxh3");
}

TEST_F(HostileStream, AStoreOfTheWrongShapeIsRefused) {
  v1::StoreBlocksRequest head = StoreHead(block_);
  head.mutable_block()->add_tokens(1);
  ExpectInvalid({head}, "tokens");
  head = StoreHead(block_);
  wire::Encode(maker_.Table(block_.digest, 1), head.mutable_block()->mutable_segments());
  head.mutable_block()->mutable_segments()->add_bytes(5);
  ExpectInvalid({head}, "segments");
  head = StoreHead(block_);
  head.mutable_variant()->set_block_tokens(17);
  ExpectInvalid({head}, "variant");
  head = StoreHead(block_);
  head.mutable_block()->set_parent("short");
  ExpectInvalid({head}, "parent");
  head = StoreHead(block_);
  head.set_tenant("neighbour");
  v1::StoreBlocksReply reply;
  EXPECT_EQ(Send({head}, &reply).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(HostileStream, AStoreOfDamagedBytesIsReportedAsDamaged) {
  const std::string counter = "larder_blocks_damaged_in_transit_total";
  const uint64_t before = Counter(counter);
  std::string data = Data(block_);
  data[kLayerBytes] ^= 1;
  v1::StoreBlocksRequest head = StoreHead(block_);
  head.set_data(data);
  v1::StoreBlocksReply reply;
  ASSERT_TRUE(Send({head}, &reply).ok());
  ASSERT_EQ(reply.status_size(), 1);
  EXPECT_EQ(reply.status(0), v1::BLOCK_STATUS_DAMAGED);
  EXPECT_THAT(reply.message(), HasSubstr("hash"));
  EXPECT_EQ(Counter(counter), before + 1);
}

TEST_F(HostileStream, ABlockLargerThanASlabIsInvalid) {
  v1::StoreBlocksRequest head = StoreHead(block_);
  wire::Encode(maker_.Table(block_.digest, 5 << 20), head.mutable_block()->mutable_segments());
  v1::StoreBlocksReply reply;
  std::vector<v1::StoreBlocksRequest> messages = {head};
  for (int i = 0; i < 10; ++i) messages.push_back(OnlyData(std::string(1 << 20, 'x')));
  ASSERT_TRUE(Send(messages, &reply).ok());
  ASSERT_EQ(reply.status_size(), 1);
  EXPECT_EQ(reply.status(0), v1::BLOCK_STATUS_INVALID);
  EXPECT_FALSE(reply.message().empty());
}

TEST_F(HostileStream, ACancelledStoreReservesNothing) {
  grpc::ClientContext context;
  v1::StoreBlocksReply reply;
  const auto stub = v1::Engine::NewStub(channel_);
  const auto stream = stub->StoreBlocks(&context, &reply);
  v1::StoreBlocksRequest head = StoreHead(block_);
  head.set_data(Data(block_).substr(0, 100));
  stream->Write(head);
  EXPECT_TRUE(Eventually([] { return daemon_->Tenant().pool_reserved() > 0; }));
  context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(HostileStream, AFetchBeyondALimitIsRefused) {
  const auto fetch = [this](const v1::FetchBlocksRequest& request, v1::FetchBlocksReply* first) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stub = v1::Engine::NewStub(channel_);
    const auto stream = stub->FetchBlocks(&context, request);
    v1::FetchBlocksReply reply;
    if (stream->Read(&reply)) *first = reply;
    while (stream->Read(&reply)) {
    }
    return stream->Finish();
  };
  Store(1);
  v1::FetchBlocksRequest request;
  wire::Encode(maker_.variant, request.mutable_variant());
  v1::FetchBlocksReply first;
  request.set_digests(std::string(16 * 4097, 'x'));
  grpc::Status status = fetch(request, &first);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("digests"));
  request.set_digests(Packed(maker_.Block(1).digest));
  request.set_first_layer(2);
  EXPECT_TRUE(fetch(request, &first).ok());
  EXPECT_EQ(first.start().status(), v1::BLOCK_STATUS_INVALID);
  request.set_first_layer(0);
  request.mutable_variant()->set_dtype("q8_0");
  EXPECT_TRUE(fetch(request, &first).ok());
  EXPECT_EQ(first.start().status(), v1::BLOCK_STATUS_MISSING)
      << "a block of another variant was found";
  request.clear_variant();
  EXPECT_EQ(fetch(request, &first).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(HostileStream, AFetchThatIsNotReadCanBeCancelled) {
  for (uint32_t i = 0; i < 8; ++i) Store(i);
  v1::FetchBlocksRequest request;
  wire::Encode(maker_.variant, request.mutable_variant());
  std::string digests;
  for (uint32_t i = 0; i < 4096; ++i) digests += Packed(maker_.Block(i % 8).digest);
  request.set_digests(digests);
  grpc::ClientContext context;
  const auto stub = v1::Engine::NewStub(channel_);
  const auto stream = stub->FetchBlocks(&context, request);
  EXPECT_TRUE(Eventually([] { return daemon_->Tenant().leases() > 0; }));
  EXPECT_EQ(daemon_->Health(), "SERVING");
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// A stream without a deadline has the contract's default of half a minute, too long for the short
// run.
TEST_F(HostileStream, AStalledStoreEndsAtTheDefaultDeadline) {
  if (testing::TestScale() < 1) GTEST_SKIP() << "takes 30 s; LARDER_TEST_SCALE=1 runs it";
  grpc::ClientContext context;
  v1::StoreBlocksReply reply;
  const auto stub = v1::Engine::NewStub(channel_);
  const auto stream = stub->StoreBlocks(&context, &reply);
  v1::StoreBlocksRequest head = StoreHead(block_);
  head.set_data(Data(block_).substr(0, 100));
  stream->Write(head);
  EXPECT_TRUE(Eventually([] { return daemon_->Tenant().pool_reserved() > 0; }));
  EXPECT_TRUE(
      Eventually([] { return daemon_->Tenant().pool_reserved() == 0; }, std::chrono::seconds(45)));
  EXPECT_FALSE(stream->Finish().ok());
}

// ---- bytes that belong to none of the daemon's protocols

class HostileBytes : public HostileTest {
 protected:
  static FileDescriptor Connect(const std::string& path, int type) {
    FileDescriptor fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
        << path;
    const timeval limit{10, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  static void SendAll(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // the daemon may close the connection
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  static std::string Random(size_t bytes, uint32_t seed) {
    std::mt19937 generator(seed);
    std::string all(bytes, '\0');
    for (char& c : all) c = static_cast<char>(generator());
    return all;
  }
};

TEST_F(HostileBytes, OnTheGrpcSocketsTheyLeaveTheDaemonServing) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::vector<std::string> all = {
      "GET / HTTP/1.1\r\nHost: larder\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) +
          Random(500, 1),  // a TLS client
      Random(1 << 20, 2),
      std::string(1 << 20, '\0'),
      preface + Random(1 << 16, 3),
      preface + std::string("\xff\xff\xff\x04\x00\x00\x00\x00\x00", 9),  // a frame of 16 MiB
      preface.substr(0, 10),
      "",
  };
  for (const std::string& path : {daemon_->data_socket(), daemon_->admin_socket()}) {
    std::vector<FileDescriptor> open;  // about half of the connections stay open and silent
    for (const std::string& bytes : all) {
      FileDescriptor fd = Connect(path, SOCK_STREAM);
      SendAll(fd.get(), bytes);
      if (bytes.size() % 2 == 0) open.push_back(std::move(fd));
    }
    EXPECT_EQ(daemon_->Health(), "SERVING");
    EXPECT_GT(daemon_->Tenant().pool_limit(), 0u);
  }
}

TEST_F(HostileBytes, OnTheSidebandTheyGetAnErrorAndAreCutOff) {
  const std::string counter = "larder_sideband_refused_total{cause=\"bad_packet\"}";
  const double before = daemon_->Metric(counter);
  ASSERT_GE(before, 0) << "/metrics has no counters of the sideband";
  const auto hello = [](uint16_t type, uint16_t version, uint32_t length, size_t body) {
    std::string packet(8 + body, '\0');
    std::memcpy(packet.data(), &type, 2);
    std::memcpy(packet.data() + 2, &version, 2);
    std::memcpy(packet.data() + 4, &length, 4);
    return packet;
  };
  const std::vector<std::string> all = {
      Random(8, 4),        Random(272, 5),     Random(60'000, 6),  // the last is too long
      hello(1, 2, 4, 4),   hello(99, 1, 4, 4), hello(1, 1, 400, 4),
      hello(1, 1, 4, 40),  hello(5, 1, 8, 8),  // MAP_SLAB before HELLO
      hello(4, 1, 80, 80),                     // WELCOME, which only the daemon may send
  };
  for (const std::string& packet : all) {
    const FileDescriptor fd = Connect(daemon_->sideband_socket(), SOCK_SEQPACKET);
    ASSERT_EQ(send(fd.get(), packet.data(), packet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
    std::array<std::byte, 4096> answer{};
    const ssize_t n = recv(fd.get(), answer.data(), answer.size(), 0);
    ASSERT_GT(n, 0) << "the daemon sent no ERROR frame";
    const auto frame = DecodeFrame(std::span(answer).first(static_cast<size_t>(n)));
    ASSERT_TRUE(frame.ok()) << frame.status();
    const auto* error = std::get_if<ErrorFrame>(&*frame);
    ASSERT_NE(error, nullptr);
    EXPECT_FALSE(error->text.empty());
    EXPECT_EQ(recv(fd.get(), answer.data(), answer.size(), 0), 0)
        << "the daemon did not close the connection";
  }
  EXPECT_EQ(daemon_->Metric(counter), before + static_cast<double>(all.size()));
}

TEST_F(HostileBytes, UnknownFlagsInASidebandHelloAreIgnored) {
  const FileDescriptor fd = Connect(daemon_->sideband_socket(), SOCK_SEQPACKET);
  const EncodedFrame hello = EncodeFrame(HelloFrame{.flags = 0xffffffff});
  ASSERT_GT(send(fd.get(), hello.bytes().data(), hello.bytes().size(), MSG_NOSIGNAL), 0);
  std::array<std::byte, 4096> answer{};
  const ssize_t n = recv(fd.get(), answer.data(), answer.size(), 0);
  ASSERT_GT(n, 0);
  const auto frame = DecodeFrame(std::span(answer).first(static_cast<size_t>(n)));
  ASSERT_TRUE(frame.ok());
  EXPECT_TRUE(std::holds_alternative<ChallengeFrame>(*frame)) << "unknown flags are not ignored";
}

// Another process, which opens connections and sends nothing on them.  It ends with this object.
class SilentProcess {
 public:
  SilentProcess(const std::string& path, int connections) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const FileDescriptor done(ends[0]);
    FileDescriptor say(ends[1]);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {  // async-signal-safe calls only, as other threads may have held locks
      DieWith(parent);
      for (int i = 0; i < connections; ++i) {
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(1);
      }
      if (write(say.get(), "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    say = FileDescriptor();
    char byte = 0;
    EXPECT_EQ(read(done.get(), &byte, 1), 1) << "the silent process could not connect";
  }
  ~SilentProcess() {
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
  }
  SilentProcess(const SilentProcess&) = delete;
  SilentProcess& operator=(const SilentProcess&) = delete;

 private:
  pid_t pid_ = -1;
};

TEST_F(HostileBytes, SilentConnectionsLeaveTheDaemonServing) {
  const size_t descriptors = daemon_->OpenDescriptors();
  {
    // More than the share of a process.  The silent process is refused more; this process is not.
    const SilentProcess silent(daemon_->data_socket(), 100);
    EXPECT_EQ(daemon_->Health(), "SERVING");
  }
  EXPECT_TRUE(Eventually([&] { return daemon_->OpenDescriptors() <= descriptors; }));
}

TEST_F(HostileBytes, UnknownSlabsPagesAndSegmentsAreRefused) {
  EXPECT_EQ(sideband_->MapSlab(SlabId{60'000}, false).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(sideband_->MapSessionPage(SessionId{1}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(sideband_->DropStaging(77).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(sideband_->MakeStaging(GiB(1024)).ok())
      << "a staging segment larger than every share was made";
}

}  // namespace
}  // namespace larder::e2e
