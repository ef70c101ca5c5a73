// Session sockets as the daemon has them: on loops, with client threads at the other ends.
#include "server/sockets/session_sockets.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/connections/passed_rights.h"
#include "tests/client/session/session_messages.h"
#include "tests/server/connections/lingering_socket.h"
#include "tests/server/sessions/session_fixture.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using testing::AcquireUp;
using testing::ByeUp;
using testing::Client;
using testing::FrameWith;
using testing::HelloUp;
using testing::SessionFixture;
using testing::TestTokens;
using testing::TestVariant;

constexpr size_t kKeys = 2000;  // of a large acquire whose frame needs no ticket

class SessionSocketsTest : public ::testing::Test {
 protected:
  void SetUp() override { sockets_ = *SessionSockets::Start({f_.deps(), f_.sessions()}, 2); }
  Client Open() {
    auto socket = sockets_->Open(process_);
    LARDER_CHECK(socket.ok());
    return Client(*std::move(socket));
  }
  Client OpenAttached() {
    Client client = Open();
    EXPECT_TRUE(client.Send(HelloUp()));
    EXPECT_TRUE(client.NextMessage().attached);
    return client;
  }
  // Returns the status of the END frame that comes next.  Nothing may come after it.
  static absl::Status EndOf(Client& client) {
    const auto end = client.NextEnd();
    if (!end) return absl::InternalError("no END");
    EXPECT_TRUE(client.Next().none());
    return end->status;
  }
  // Puts a block and acquires a lease on it, as SessionTest does.
  void PutAndAcquire(Client& client) {
    wire::Up reg;
    reg.registers.push_back({.id = 1, .contents = {Content()}, .variants = {TestVariant()}});
    ASSERT_TRUE(client.Send(reg));
    ASSERT_EQ(client.NextMessage().registered.at(0).status, BlockStatus::kOk);
    wire::Up reserve;
    reserve.reserves.push_back({.id = 2, .bytes = {KiB(4)}});
    ASSERT_TRUE(client.Send(reserve));
    const wire::Reserved reserved = client.NextMessage().reserved.at(0);
    ASSERT_EQ(reserved.status, BlockStatus::kOk);
    wire::PublishBlock block;
    block.digest = Name();
    block.tokens = TestTokens(1);
    block.segments = UniformTable(1, 4096);
    wire::Up publish;
    publish.publishes.push_back(
        {.id = 3, .reservation = reserved.reservation, .variant = 0, .blocks = {block}});
    ASSERT_TRUE(client.Send(publish));
    ASSERT_EQ(client.NextMessage().published.at(0).status.at(0), BlockStatus::kOk);
    wire::Up acquire = AcquireUp(4, 0);
    acquire.acquires[0].digests = {Name()};
    ASSERT_TRUE(client.Send(acquire));
    const wire::Grant grant = client.NextMessage().grants.at(0);
    EXPECT_EQ(grant.id, 4u);
    ASSERT_EQ(grant.blocks.at(0).status, BlockStatus::kOk);
    lease_ = grant.lease;
    ASSERT_EQ(f_.store().stats().leases, 1u);
  }
  static ContentSpec Content() {
    ContentSpec content;
    content.model = "m";
    return content;
  }
  static Digest Name() { return Chain({}, TestTokens(1)).back(); }

  SessionFixture f_;
  AttachedProcess process_ = f_.Process(getpid(), true);
  std::unique_ptr<SessionSockets> sockets_;
  LeaseId lease_;
};

TEST_F(SessionSocketsTest, AttachesAndAnswers) {
  Client client = Open();
  ASSERT_TRUE(client.Send(HelloUp()));
  const wire::Attached attached = *client.NextMessage().attached;
  EXPECT_EQ(attached.session, f_.sessions().All().at(0)->id());
  EXPECT_EQ(attached.write_mode, wire::WriteMode::kMapped);
  EXPECT_EQ(f_.counters().sessions_attached.value(), 1u);
  PutAndAcquire(client);
}

TEST_F(SessionSocketsTest, ByeEndsWithOkAndReleasesEverything) {
  Client client = OpenAttached();
  PutAndAcquire(client);
  ASSERT_TRUE(client.Send(ByeUp()));
  client.HalfClose();
  EXPECT_TRUE(client.NextEnd().value().status.ok());
  // The END is sent after everything has been released.
  EXPECT_EQ(f_.sessions().size(), 0u);
  EXPECT_EQ(f_.store().stats().leases, 0u);
  EXPECT_EQ(f_.quarantine().bytes(), ByteCount(0));
  EXPECT_EQ(f_.counters().sessions_lost.value(), 0u);
  EXPECT_TRUE(client.Next().none());
}

// As on a kernel that cannot refuse descriptors.  On each loop one byte arrives with a descriptor
// whose close blocks, and one session ends with such a byte unread.
TEST_F(SessionSocketsTest, DescriptorsWithABlockingCloseDelayNoOtherSession) {
  constexpr int kLinger_s = 20;
  PretendNoPassRights(true);
  Client victim = OpenAttached();
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 4; ++i) {
    const FileDescriptor attacker = *sockets_->Open(process_);
    LingeringSocket hurts(kLinger_s);
    if (i >= 2) {
      ASSERT_EQ(write(attacker.get(), "garbage that ends it", 20), 20);
    }
    (void)hurts.SendTo(attacker.get(), "x");  // the session may have ended already
    char end[512];
    while (read(attacker.get(), end, sizeof end) > 0) {
    }
  }
  for (uint64_t id = 1; id <= 100; ++id) {
    ASSERT_TRUE(victim.Send(AcquireUp(id)));
    ASSERT_EQ(victim.NextMessage().grants.at(0).id, id);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(kLinger_s / 2));
  PretendNoPassRights(false);
}

TEST_F(SessionSocketsTest, AllThatWasSentBeforeTheHalfCloseIsAnswered) {
  Client client = Open();
  std::string bytes = client.Frame(HelloUp());
  for (uint64_t id = 1; id <= 1000; ++id) bytes += client.Frame(AcquireUp(id));
  ASSERT_TRUE(client.SendBytes(bytes + client.Frame(ByeUp())));
  client.HalfClose();
  EXPECT_TRUE(client.NextMessage().attached);
  for (uint64_t id = 1; id <= 1000; ++id) ASSERT_EQ(client.NextMessage().grants.at(0).id, id);
  EXPECT_TRUE(EndOf(client).ok());
}

TEST_F(SessionSocketsTest, WithoutByeTheProcessesMemoryIsQuarantined) {
  Client half = OpenAttached();
  PutAndAcquire(half);
  half.HalfClose();
  EXPECT_TRUE(EndOf(half).ok());
  EXPECT_EQ(f_.quarantine().bytes(), KiB(4));
  EXPECT_EQ(f_.counters().sessions_lost.value(), 1u);
}

TEST_F(SessionSocketsTest, ABrokenStreamIsALostSession) {
  Client client = OpenAttached();
  PutAndAcquire(client);
  client.Break();
  EXPECT_TRUE(Eventually([&] { return f_.sessions().size() == 0; }));
  EXPECT_EQ(f_.quarantine().bytes(), KiB(4));
  EXPECT_EQ(f_.counters().sessions_lost.value(), 1u);
}

TEST_F(SessionSocketsTest, BytesThatAreNotAMessageEndTheSession) {
  struct Case {
    std::string bytes;
    absl::StatusCode code;
  };
  const auto no_header = EncodeSessionFrameHeader(SessionFrameType::kMessage, ~uint32_t{0});
  const Case cases[] = {
      {FrameWith(SessionFrameType::kMessage, "\xff\xff\xff"), absl::StatusCode::kInvalidArgument},
      {FrameWith(SessionFrameType::kMessage, ""), absl::StatusCode::kInvalidArgument},  // no hello
      {FrameWith(SessionFrameType::kEnd, ""), absl::StatusCode::kInvalidArgument},
      {std::string(no_header.data(), no_header.size()), absl::StatusCode::kInvalidArgument},
      {FrameWith(SessionFrameType{9}, ""), absl::StatusCode::kUnimplemented},
      {"GET / HTTP/1.1\r\n\r\n", absl::StatusCode::kUnimplemented},
  };
  uint64_t invalid = 0;
  for (const Case& c : cases) {
    Client client = Open();
    ASSERT_TRUE(client.SendBytes(c.bytes));
    EXPECT_EQ(EndOf(client).code(), c.code) << "case " << invalid;
    EXPECT_EQ(f_.counters().invalid_messages.value(), ++invalid);
    EXPECT_EQ(f_.sessions().size(), 0u);
  }
}

TEST_F(SessionSocketsTest, MessagesBeforeAnInvalidFrameAreAnswered) {
  Client client = Open();
  std::string bytes = client.Frame(HelloUp()) + client.Frame(AcquireUp(1));
  ASSERT_TRUE(client.SendBytes(bytes + FrameWith(SessionFrameType::kEnd, "")));
  EXPECT_TRUE(client.NextMessage().attached);
  EXPECT_EQ(client.NextMessage().grants.at(0).id, 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(EndOf(client)));
}

TEST_F(SessionSocketsTest, AMissingHelloEndsTheSession) {
  Client client = Open();
  f_.clock().Advance(AttachedSession::kHelloDeadline);
  f_.sessions().All().at(0)->Tick(f_.clock().Now());
  EXPECT_TRUE(absl::IsDeadlineExceeded(EndOf(client)));
}

TEST_F(SessionSocketsTest, TheRefusalBeyondTheLimitIsSentOnTheSocket) {
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i)
    clients.push_back(OpenAttached());  // as many as the fixture allows one process
  Client refused = Open();
  (void)refused.Send(HelloUp());  // the refusal may arrive first
  const SessionEnd end = refused.NextEnd().value();
  EXPECT_TRUE(absl::IsResourceExhausted(end.status)) << end.status;
  EXPECT_GT(end.retry_after_ms, 0u);
  EXPECT_TRUE(refused.Next().none());
  EXPECT_EQ(f_.counters().sessions_refused.value(), 1u);
  // The slot of a session that has ended is free.
  ASSERT_TRUE(clients.back().Send(ByeUp()));
  clients.back().HalfClose();
  EXPECT_TRUE(EndOf(clients.back()).ok());
  (void)OpenAttached();
}

TEST_F(SessionSocketsTest, DrainingEndsOpenSessionsAndRefusesNewOnes) {
  Client idle = OpenAttached();
  Client busy = OpenAttached();
  PutAndAcquire(busy);
  EXPECT_EQ(f_.sessions().Drain(f_.clock().Now()), 2u);
  EXPECT_EQ(idle.NextMessage().directives.at(0).kind, wire::DirectiveKind::kDrain);
  f_.clock().Advance(AttachedSession::kDrainGrace);
  for (const auto& session : f_.sessions().All()) session->Tick(f_.clock().Now());
  EXPECT_TRUE(EndOf(idle).ok());
  EXPECT_EQ(busy.NextMessage().directives.at(0).kind, wire::DirectiveKind::kDrain);
  Client late = Open();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(late)));
  // The busy session ends with its last release.
  EXPECT_EQ(f_.sessions().size(), 1u);
  wire::Up release;
  release.releases = {lease_};
  ASSERT_TRUE(busy.Send(release));
  EXPECT_TRUE(EndOf(busy).ok());
}

TEST_F(SessionSocketsTest, AClientThatReadsLateGetsAllAnswers) {
  Client client = OpenAttached();
  constexpr uint64_t kRequests = 300;  // more than the queue takes
  std::thread writer([&] {
    for (uint64_t id = 1; id <= kRequests; ++id) ASSERT_TRUE(client.Send(AcquireUp(id, kKeys)));
  });
  const auto acquires = [&] { return f_.counters().requests_acquire.value(); };
  EXPECT_TRUE(Eventually([&] { return acquires() * kKeys > SessionSocket::kQueuedMax / 8; }));
  EXPECT_LT(acquires(), kRequests);
  for (uint64_t id = 1; id <= kRequests; ++id) EXPECT_EQ(client.NextMessage().grants.at(0).id, id);
  writer.join();
  ASSERT_TRUE(client.Send(ByeUp()));
  client.HalfClose();
  EXPECT_TRUE(EndOf(client).ok());
}

// Only free space in the socket makes the daemon continue to write: there is no input and no
// deadline.
TEST_F(SessionSocketsTest, AnswersThatDidNotFitArriveWhenTheClientReads) {
  Client client = OpenAttached();
  constexpr uint64_t kRequests = 250;
  for (uint64_t id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(client.Send(AcquireUp(id, 900)));  // each is received whole and on its own
    ASSERT_TRUE(Eventually([&] { return f_.counters().requests_acquire.value() == id; }));
  }
  int on_the_way = 0;
  ASSERT_EQ(ioctl(client.socket(), FIONREAD, &on_the_way), 0);
  size_t read = 0;
  for (uint64_t id = 1; id <= kRequests; ++id) {
    const wire::Down down = client.NextMessage();
    ASSERT_EQ(down.grants.at(0).id, id);
    std::string frame;
    SessionCodec().Append(down, &frame);
    read += frame.size();
  }
  EXPECT_GT(read, static_cast<size_t>(on_the_way))
      << "all answers fitted the socket, so this test proves nothing";
}

TEST_F(SessionSocketsTest, AbandonDoesNotWaitForAClientThatDoesNotRead) {
  Client client = OpenAttached();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t id = 1; !stop; ++id) {
      const std::string frame = client.Frame(AcquireUp(id, kKeys));
      std::string_view left = frame;
      while (!left.empty() && !stop) left = client.SendSome(left);
    }
  });
  EXPECT_TRUE(Eventually([&] {
    return f_.counters().requests_acquire.value() * kKeys > SessionSocket::kQueuedMax / 8;
  }));
  f_.sessions().All().at(0)->Abandon();
  EXPECT_TRUE(Eventually([&] { return f_.sessions().size() == 0; }));
  stop = true;
  writer.join();
  // Answers are in order, as far as they were sent.  The END is the last frame, if it was sent in
  // time.
  uint64_t id = 0;
  for (;;) {
    const Client::Event event = client.Next();
    EXPECT_TRUE(!event.end || absl::IsUnavailable(event.end->status));
    if (!event.message) break;
    ASSERT_EQ(event.message->grants.at(0).id, ++id);
  }
  EXPECT_GT(id, 0u);
}

TEST_F(SessionSocketsTest, AClientThatDoesNotReadDelaysNoOtherSession) {
  sockets_ = *SessionSockets::Start({f_.deps(), f_.sessions()}, 1);
  Client deaf = OpenAttached();
  Client other = OpenAttached();
  const std::string frame = deaf.Frame(AcquireUp(1, kKeys));
  std::string_view left;
  for (uint64_t id = 1; id <= 500; ++id) {
    if (left.empty()) left = frame;
    left = deaf.SendSome(left);
    ASSERT_TRUE(other.Send(AcquireUp(id)));
    ASSERT_EQ(other.NextMessage().grants.at(0).id, id);
  }
}

TEST_F(SessionSocketsTest, DestructionEndsAllSessions) {
  std::vector<Client> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(OpenAttached());
  // One of the sessions is in the middle of a message, and one has not sent a hello.
  ASSERT_TRUE(clients[0].SendBytes(clients[0].Frame(AcquireUp(1)).substr(0, 10)));
  clients.push_back(Open());
  sockets_.reset();
  EXPECT_EQ(f_.sessions().size(), 0u);
  for (Client& client : clients) {
    EXPECT_TRUE(absl::IsUnavailable(client.NextEnd().value().status));
    EXPECT_TRUE(client.Next().none());
  }
}

TEST_F(SessionSocketsTest, DestructionDoesNotWaitForAClientThatDoesNotRead) {
  Client client = OpenAttached();
  const std::string frame = client.Frame(AcquireUp(1, kKeys));
  std::string_view left = frame;
  EXPECT_TRUE(Eventually([&] {
    left = client.SendSome(left.empty() ? frame : left);
    return f_.counters().requests_acquire.value() * kKeys > SessionSocket::kQueuedMax / 8;
  }));
  sockets_.reset();
  EXPECT_EQ(f_.sessions().size(), 0u);
}

TEST_F(SessionSocketsTest, ManySessionsOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kSessions = 20;
  constexpr uint64_t kRequests = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int s = 0; s < kSessions; ++s) {
        Client client = Open();
        ASSERT_TRUE(client.Send(HelloUp()));
        const SessionId session = client.NextMessage().attached.value().session;
        for (uint64_t id = 1; id <= kRequests; ++id) {
          ASSERT_TRUE(client.Send(AcquireUp(id, (id % 7) * 50)));
          if (id % 3 == 0) continue;  // now and then two at once
          if (id % 3 == 1 && id > 1) {
            ASSERT_EQ(client.NextMessage().grants.at(0).id, id - 1);
          }
          ASSERT_EQ(client.NextMessage().grants.at(0).id, id);
        }
        if ((t + s) % 4 == 0) {
          client.Break();
          ASSERT_TRUE(Eventually([&] { return f_.sessions().Find(session) == nullptr; }));
          continue;
        }
        ASSERT_TRUE(client.Send(ByeUp()));
        client.HalfClose();
        ASSERT_TRUE(EndOf(client).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return f_.sessions().size() == 0; }));
  EXPECT_EQ(f_.counters().sessions_attached.value(), uint64_t{kThreads} * kSessions);
  EXPECT_EQ(f_.counters().requests_acquire.value(), kThreads * kSessions * kRequests);
  EXPECT_EQ(f_.counters().invalid_messages.value(), 0u);
}

// Revocations, the drain and the end come from other threads, for the thread sanitizer.
TEST_F(SessionSocketsTest, SessionsCanEndFromSeveralThreadsAtOnce) {
  for (int i = 0; i < 50; ++i) {
    Client client = OpenAttached();
    const std::shared_ptr<AttachedSession> session = f_.sessions().All().at(0);
    std::thread abandon([&] { session->Abandon(); });
    std::thread drain([&] { session->Drain(); });
    (void)client.Send(AcquireUp(1));
    (void)client.Send(ByeUp());
    client.HalfClose();
    EXPECT_TRUE(client.NextEnd());
    abandon.join();
    drain.join();
    EXPECT_EQ(f_.sessions().size(), 0u);
  }
}

}  // namespace
}  // namespace larder
