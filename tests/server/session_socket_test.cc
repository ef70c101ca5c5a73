#include "server/session_socket.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/session_sockets.h"
#include "tests/client/session_peer.h"
#include "tests/server/session_fixture.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using testing::SessionFixture;
using testing::SocketPair;
using testing::TestTokens;
using testing::TestVariant;

using Client = testing::SessionPeer<wire::Up, wire::Down>;

constexpr size_t kKeys = 4000;  // of a large acquire: its frame still passes without a ticket

wire::Up HelloUp(wire::WriteMode mode = wire::WriteMode::kMapped) {
  wire::Up up;
  up.hello.emplace();
  up.hello->engine_id = "engine";
  up.hello->write_mode = mode;
  return up;
}

// Without a registered variant every key is INVALID: an answer of any size, without any block.
wire::Up AcquireUp(uint64_t id, size_t keys = 1) {
  wire::Up up;
  wire::Acquire& acquire = up.acquires.emplace_back();
  acquire.id = id;
  acquire.digests.resize(keys);
  acquire.accepted_codecs = {Codec::kIdentity};
  return up;
}

wire::Up ByeUp() {
  wire::Up up;
  up.bye = true;
  return up;
}

// An empty END frame that a client must not send, and bytes that are no frame.
std::string FrameWith(SessionFrameType type, const std::string& body) {
  const auto header = EncodeSessionFrameHeader(type, body.size());
  return std::string(header.data(), header.size()) + body;
}

size_t ResidentBytes() {
  size_t all = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// ---- one socket, its loop played by the test: time is what the test says

class CountingWaker final : public SessionSocket::Waker {
 public:
  void Wake(uint64_t id) override {
    EXPECT_EQ(id, 7u);
    ++wakes;
  }
  std::atomic<int> wakes{0};
};

class SessionSocketTest : public ::testing::Test {
 protected:
  static constexpr TimePoint kStart{std::chrono::hours(1)};

  void SetUp() override { Start({}); }
  void Start(const Admission::Limits& limits) {
    socket_.reset();
    admission_.emplace(limits);
    SocketPair ends;
    socket_ = std::make_unique<SessionSocket>(
        SessionSocket::Context{f_.deps(), f_.sessions(), *admission_}, std::move(ends.ours), 7,
        waker_);
    auto session = f_.sessions().Add(f_.deps(), f_.Process(getpid(), true), "test", *socket_);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *session;
    socket_->Begin(*std::move(session));
    client_.emplace(std::move(ends.theirs));
    ASSERT_TRUE(client_->Send(HelloUp()));
    EXPECT_TRUE(socket_->OnEvent(kStart).heard);
    EXPECT_TRUE(client_->NextMessage().attached);
  }
  // Until no more is done with the input that is there; what comes next then.
  SessionSocket::Next RunDry(TimePoint now) {
    SessionSocket::Next next = socket_->OnEvent(now);
    while (next.heard) next = socket_->OnEvent(now);
    return next;
  }
  // Large requests without reading, until the daemon takes no more; the id of the last one, which
  // may be only half sent.
  uint64_t Flood() {
    for (uint64_t id = 1;; ++id) {
      std::string frame = client_->Frame(AcquireUp(id, kKeys));
      for (;;) {
        frame = client_->SendSome(frame);
        if (frame.empty()) break;
        const SessionSocket::Next next = RunDry(kStart);
        if (next.read) continue;
        unsent_ = frame;
        return id;
      }
    }
  }
  uint64_t acquires() { return f_.counters().requests_acquire.value(); }
  uint64_t admitted_bytes() { return admission_->inside(Admission::Gate::kBytes); }

  SessionFixture f_;
  CountingWaker waker_;
  std::optional<Admission> admission_;
  std::shared_ptr<AttachedSession> session_;
  std::unique_ptr<SessionSocket> socket_;
  std::optional<Client> client_;
  std::string unsent_;
};

TEST_F(SessionSocketTest, WaitsForInputAlone) {
  const SessionSocket::Next next = socket_->OnEvent(kStart);
  EXPECT_TRUE(next.read);
  EXPECT_FALSE(next.heard || next.write || next.over);
  EXPECT_EQ(next.due, TimePoint::max());
}

TEST_F(SessionSocketTest, AMessageThatStopsHalfwayEndsTheSession) {
  const std::string frame = client_->Frame(AcquireUp(1));
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 3)));
  const TimePoint due = kStart + SessionSocket::kMessageDeadline;
  EXPECT_EQ(socket_->OnEvent(kStart).due, due);
  // A byte more is no message: it gains no time.
  ASSERT_TRUE(client_->SendBytes(frame.substr(3, 7)));
  SessionSocket::Next next = socket_->OnEvent(due - milliseconds(1));
  EXPECT_EQ(next.due, due);
  EXPECT_TRUE(next.read && !next.over);
  next = socket_->OnEvent(due);
  EXPECT_TRUE(next.over) << "its last word has left";
  EXPECT_EQ(f_.sessions().size(), 0u);
  const auto end = client_->NextEnd();
  ASSERT_TRUE(end);
  EXPECT_TRUE(absl::IsDeadlineExceeded(end->status)) << end->status;
}

TEST_F(SessionSocketTest, AMessageThatIsWholeInTimeHasNoDeadlineAnyMore) {
  const std::string frame = client_->Frame(AcquireUp(1));
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 10)));
  const SessionSocket::Next begun = socket_->OnEvent(kStart);
  EXPECT_FALSE(begun.heard);
  ASSERT_TRUE(client_->SendBytes(frame.substr(10)));
  EXPECT_TRUE(socket_->OnEvent(begun.due - milliseconds(1)).heard);
  EXPECT_EQ(client_->NextMessage().grants.at(0).id, 1u);
  const SessionSocket::Next next = socket_->OnEvent(begun.due);
  EXPECT_TRUE(next.read && !next.over);
  EXPECT_EQ(next.due, TimePoint::max());
}

// A new deadline begins with each message, though bytes never cease to wait.
TEST_F(SessionSocketTest, EachMessageHasItsOwnTime) {
  const std::string frame = client_->Frame(AcquireUp(1));
  const std::string shifted = frame.substr(10) + frame.substr(0, 10);
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 10)));
  TimePoint now = kStart;
  EXPECT_EQ(socket_->OnEvent(now).due, now + SessionSocket::kMessageDeadline);
  for (int i = 0; i < 5; ++i) {
    now += SessionSocket::kMessageDeadline - milliseconds(1);
    ASSERT_TRUE(client_->SendBytes(shifted));
    const SessionSocket::Next next = socket_->OnEvent(now);
    EXPECT_TRUE(next.heard && !next.over);
    EXPECT_EQ(next.due, now + SessionSocket::kMessageDeadline);
  }
}

TEST_F(SessionSocketTest, AnswersToAClientThatDoesNotReadAreBounded) {
  const uint64_t last = Flood();
  // What fits the queue and the socket, and not a message more, whatever the client wants.
  const uint64_t answered = acquires();
  EXPECT_GT(answered * kKeys, SessionSocket::kQueuedMax / 8) << "it stopped for another reason";
  EXPECT_LT(answered, last) << "some wait unread";
  for (int i = 0; i < 100; ++i) {
    const SessionSocket::Next next = socket_->OnEvent(kStart + i * std::chrono::hours(1));
    EXPECT_TRUE(next.write && !next.read && !next.heard && !next.over);
    EXPECT_EQ(next.due, TimePoint::max()) << "it is the daemon that does not read";
  }
  EXPECT_EQ(acquires(), answered);
  // The client reads: the daemon goes on, and nothing is lost or out of order.
  const TimePoint later = kStart + std::chrono::hours(1000);
  for (uint64_t id = 1; id <= last; ++id) {
    pollfd readable{.fd = client_->socket(), .events = POLLIN, .revents = 0};
    while (poll(&readable, 1, 0) == 0 || acquires() < id) {
      unsent_ = client_->SendSome(unsent_);
      ASSERT_FALSE(socket_->OnEvent(later).over);
    }
    // The rest of an answer that has begun comes as the client takes its beginning.
    std::atomic<bool> read{false};
    std::thread loop([&] {
      while (!read) (void)socket_->OnEvent(later);
    });
    const wire::Down down = client_->NextMessage();
    read = true;
    loop.join();
    ASSERT_EQ(down.grants.at(0).id, id);
    EXPECT_EQ(down.grants[0].blocks.size(), kKeys);
  }
  const SessionSocket::Next next = RunDry(later);
  EXPECT_TRUE(next.read && !next.write && !next.over);
}

// Nor may one that always leaves some of it unread.
TEST_F(SessionSocketTest, AClientThatReadsSlowlyDoesNotMakeTheQueueGrow) {
  wire::Down down;
  down.durable.push_back({.variant = 0, .digests = std::vector<Digest>(1024)});
  std::string frame;
  SessionCodec().Append(down, &frame);
  for (size_t sent = 0; sent < SessionSocket::kQueuedMax; sent += frame.size()) socket_->Send(down);
  const size_t before = ResidentBytes();
  for (size_t sent = 0; sent < (64 << 20); sent += frame.size()) {
    socket_->Send(down);
    for (size_t taken = 0; taken < frame.size();) {
      ASSERT_TRUE(socket_->OnEvent(kStart).write) << "the queue ran empty: this shows nothing";
      taken += client_->Discard(frame.size() - taken);
    }
  }
  const size_t after = ResidentBytes();
  EXPECT_LT(after, before + (32 << 20)) << "64 MiB went through a queue of 1 MiB";
}

TEST_F(SessionSocketTest, LastWordsWaitForAClientThatReadsLate) {
  const uint64_t last = Flood();
  const uint64_t answered = acquires();
  ASSERT_LT(answered, last);
  session_->Abandon();
  SessionSocket::Next next = socket_->OnEvent(kStart);
  EXPECT_EQ(f_.sessions().size(), 0u) << "what the session holds does not wait";
  EXPECT_TRUE(next.write && !next.read && !next.over);
  EXPECT_EQ(next.due, kStart + SessionSocket::kLinger);
  std::thread loop([&] {
    while (!next.over) next = socket_->OnEvent(next.due - milliseconds(1));
  });
  for (uint64_t id = 1; id <= answered; ++id) EXPECT_EQ(client_->NextMessage().grants.at(0).id, id);
  const auto end = client_->NextEnd();
  loop.join();
  ASSERT_TRUE(end);
  EXPECT_TRUE(absl::IsUnavailable(end->status)) << end->status;
}

TEST_F(SessionSocketTest, LastWordsDoNotWaitForEver) {
  (void)Flood();
  session_->Abandon();
  const SessionSocket::Next next = socket_->OnEvent(kStart);
  EXPECT_FALSE(socket_->OnEvent(next.due - milliseconds(1)).over);
  EXPECT_TRUE(socket_->OnEvent(next.due).over);
}

TEST_F(SessionSocketTest, AWishToEndWakesTheLoopOnce) {
  EXPECT_EQ(waker_.wakes, 0);
  session_->Abandon();
  session_->Abandon();
  EXPECT_EQ(waker_.wakes, 1);
  EXPECT_TRUE(socket_->OnEvent(kStart).over);
  EXPECT_TRUE(absl::IsUnavailable(client_->NextEnd().value().status));
}

TEST_F(SessionSocketTest, WhatDoesNotFitTheSocketWakesTheLoop) {
  wire::Down down;
  down.durable.push_back({.variant = 0, .digests = std::vector<Digest>(4096)});
  while (waker_.wakes == 0) socket_->Send(down);
  socket_->Send(down);
  EXPECT_EQ(waker_.wakes, 1) << "once until the loop has looked";
  EXPECT_TRUE(socket_->OnEvent(kStart).write);
  socket_->Send(down);
  EXPECT_EQ(waker_.wakes, 2);
}

TEST_F(SessionSocketTest, ADeadProcessIsToldNothing) {
  (void)Flood();
  session_->OnUnmapped();
  EXPECT_TRUE(socket_->OnEvent(kStart).over) << "without lingering";
  EXPECT_EQ(f_.sessions().size(), 0u);
}

TEST_F(SessionSocketTest, LongMessagesPassTheAdmission) {
  const std::string frame = client_->Frame(AcquireUp(1, wire::kKeysMax));
  const size_t body = frame.size() - kSessionFrameHeaderBytes;
  ASSERT_GT(body, SessionSocket::kFreeBodyBytes);
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 100)));
  EXPECT_TRUE(RunDry(kStart).read);
  EXPECT_EQ(admitted_bytes(), 2 * body);
  ASSERT_TRUE(client_->SendBytes(frame.substr(100)));
  while (acquires() == 0) ASSERT_FALSE(socket_->OnEvent(kStart).over);
  EXPECT_EQ(admitted_bytes(), 0u);
  EXPECT_EQ(client_->NextMessage().grants.at(0).id, 1u);
}

TEST_F(SessionSocketTest, AMessageForWhichThereIsNoRoomEndsTheSession) {
  session_.reset();
  Start({.bytes_max = KiB(200)});
  const Admission::Answer others = admission_->EnterBytes(KiB(150));
  ASSERT_TRUE(client_->SendBytes(client_->Frame(AcquireUp(1, wire::kKeysMax)).substr(0, 100)));
  EXPECT_TRUE(RunDry(kStart).over);
  const SessionEnd end = client_->NextEnd().value();
  EXPECT_TRUE(absl::IsResourceExhausted(end.status)) << end.status;
  EXPECT_GT(end.retry_after_ms, 0u);
  EXPECT_EQ(f_.counters().calls_overloaded.value(), 1u);
  EXPECT_EQ(admitted_bytes(), KiB(150).value());
  EXPECT_EQ(acquires(), 0u);
}

TEST_F(SessionSocketTest, AnEndedSessionGivesItsRoomBack) {
  const std::string frame = client_->Frame(AcquireUp(1, wire::kKeysMax));
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 100)));
  EXPECT_TRUE(RunDry(kStart).read);
  EXPECT_GT(admitted_bytes(), 0u);
  session_->Abandon();
  (void)socket_->OnEvent(kStart);
  EXPECT_EQ(admitted_bytes(), 0u);
}

TEST_F(SessionSocketTest, DestroyedItEndsItsSession) {
  socket_.reset();
  EXPECT_EQ(f_.sessions().size(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(client_->NextEnd().value().status));
  EXPECT_TRUE(client_->Next().none());
}

// ---- as the daemon has them: on loops

class SessionSocketsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sockets_ = *SessionSockets::Start({f_.deps(), f_.sessions(), admission_}, 2);
  }
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
  // The status of the end that comes next, and after which nothing comes.
  static absl::Status EndOf(Client& client) {
    const auto end = client.NextEnd();
    if (!end) return absl::InternalError("no END");
    EXPECT_TRUE(client.Next().none());
    return end->status;
  }
  // A block put, and a lease on it, as SessionTest does it.
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
    ASSERT_EQ(f_.store().stats().leases, 1u);
  }
  static ContentSpec Content() {
    ContentSpec content;
    content.model = "m";
    return content;
  }
  static Digest Name() { return Chain({}, TestTokens(1)).back(); }

  SessionFixture f_;
  Admission admission_{Admission::Limits{}};
  AttachedProcess process_ = f_.Process(getpid(), true);
  std::unique_ptr<SessionSockets> sockets_;
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

TEST_F(SessionSocketsTest, ByeEndsInPeaceAndLeavesNothing) {
  Client client = OpenAttached();
  PutAndAcquire(client);
  ASSERT_TRUE(client.Send(ByeUp()));
  client.HalfClose();
  EXPECT_TRUE(client.NextEnd().value().status.ok());
  // The end is said after all has been given back.
  EXPECT_EQ(f_.sessions().size(), 0u);
  EXPECT_EQ(f_.store().stats().leases, 0u);
  EXPECT_EQ(f_.quarantine().bytes(), ByteCount(0));
  EXPECT_EQ(f_.counters().sessions_lost.value(), 0u);
  EXPECT_TRUE(client.Next().none());
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

TEST_F(SessionSocketsTest, WithoutByeWhatTheProcessMayTouchWaits) {
  Client half = OpenAttached();
  PutAndAcquire(half);
  half.HalfClose();
  EXPECT_TRUE(EndOf(half).ok());
  EXPECT_EQ(f_.quarantine().bytes(), KiB(4));
  EXPECT_EQ(f_.counters().sessions_lost.value(), 1u);

  Client broken = OpenAttached();
  ASSERT_TRUE(broken.Send(AcquireUp(1)));
  (void)broken.NextMessage();
  broken.Break();
  EXPECT_TRUE(Eventually([&] { return f_.sessions().size() == 0; }));
  EXPECT_EQ(f_.quarantine().bytes(), KiB(4));
}

TEST_F(SessionSocketsTest, ABrokenStreamIsALostSession) {
  Client client = OpenAttached();
  PutAndAcquire(client);
  client.Break();
  EXPECT_TRUE(Eventually([&] { return f_.sessions().size() == 0; }));
  EXPECT_EQ(f_.quarantine().bytes(), KiB(4));
  EXPECT_EQ(f_.counters().sessions_lost.value(), 1u);
}

TEST_F(SessionSocketsTest, WhatIsNoMessageEndsTheSession) {
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

TEST_F(SessionSocketsTest, WhatCameBeforeTheNonsenseIsAnswered) {
  Client client = Open();
  std::string bytes = client.Frame(HelloUp()) + client.Frame(AcquireUp(1));
  ASSERT_TRUE(client.SendBytes(bytes + FrameWith(SessionFrameType::kEnd, "")));
  EXPECT_TRUE(client.NextMessage().attached);
  EXPECT_EQ(client.NextMessage().grants.at(0).id, 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(EndOf(client)));
}

TEST_F(SessionSocketsTest, AHelloMustCome) {
  Client client = Open();
  f_.clock().Advance(AttachedSession::kHelloDeadline);
  f_.sessions().All().at(0)->Tick(f_.clock().Now());
  EXPECT_TRUE(absl::IsDeadlineExceeded(EndOf(client)));
}

TEST_F(SessionSocketsTest, TheLimitIsToldOnTheSocket) {
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(OpenAttached());  // as many as the fixture allows
  Client refused = Open();
  (void)refused.Send(HelloUp());  // it may be told before it says anything
  const SessionEnd end = refused.NextEnd().value();
  EXPECT_TRUE(absl::IsResourceExhausted(end.status)) << end.status;
  EXPECT_GT(end.retry_after_ms, 0u);
  EXPECT_TRUE(refused.Next().none());
  EXPECT_EQ(f_.counters().sessions_refused.value(), 1u);
  // The place of one that has ended is free.
  ASSERT_TRUE(clients.back().Send(ByeUp()));
  clients.back().HalfClose();
  EXPECT_TRUE(EndOf(clients.back()).ok());
  (void)OpenAttached();
}

TEST_F(SessionSocketsTest, DrainingEndsTheOldAndRefusesTheNew) {
  Client idle = OpenAttached();
  Client busy = OpenAttached();
  PutAndAcquire(busy);
  EXPECT_EQ(f_.sessions().Drain(), 2u);
  EXPECT_EQ(idle.NextMessage().directives.at(0).kind, wire::DirectiveKind::kDrain);
  EXPECT_TRUE(EndOf(idle).ok());
  EXPECT_EQ(busy.NextMessage().directives.at(0).kind, wire::DirectiveKind::kDrain);
  Client late = Open();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(late)));
  // The busy one ends with its last release.
  EXPECT_EQ(f_.sessions().size(), 1u);
  wire::Up release;
  release.releases = {LeaseId{(f_.sessions().All().at(0)->id().value << 32) | 2}};
  ASSERT_TRUE(busy.Send(release));
  EXPECT_TRUE(EndOf(busy).ok());
}

TEST_F(SessionSocketsTest, AClientMayReadLate) {
  Client client = OpenAttached();
  constexpr uint64_t kRequests = 300;  // of which the queue takes a part
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

TEST_F(SessionSocketsTest, AbandonDoesNotWaitForAClientThatDoesNotRead) {
  Client client = OpenAttached();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::string_view left;
    std::string frame;
    for (uint64_t id = 1; !stop; ++id) {
      frame = client.Frame(AcquireUp(id, kKeys));
      for (left = frame; !left.empty() && !stop;) left = client.SendSome(left);
    }
  });
  EXPECT_TRUE(Eventually([&] {
    return f_.counters().requests_acquire.value() * kKeys > SessionSocket::kQueuedMax / 8;
  }));
  f_.sessions().All().at(0)->Abandon();
  EXPECT_TRUE(Eventually([&] { return f_.sessions().size() == 0; }));
  stop = true;
  writer.join();
  // In order, as far as they got; the end is the last word if it came in time.
  uint64_t id = 0;
  for (;;) {
    const Client::Event event = client.Next();
    if (event.end) EXPECT_TRUE(absl::IsUnavailable(event.end->status));
    if (!event.message) break;
    ASSERT_EQ(event.message->grants.at(0).id, ++id);
  }
  EXPECT_GT(id, 0u);
}

TEST_F(SessionSocketsTest, OtherSessionsGoOnBesideOneThatDoesNotRead) {
  sockets_ = *SessionSockets::Start({f_.deps(), f_.sessions(), admission_}, 1);
  Client deaf = OpenAttached();
  Client other = OpenAttached();
  const std::string frame = deaf.Frame(AcquireUp(1, kKeys));
  std::string left;
  // A wait for it in between would never end: nobody reads.
  for (uint64_t id = 1; id <= 500; ++id) {
    if (left.empty()) left = frame;
    left = deaf.SendSome(left);
    ASSERT_TRUE(other.Send(AcquireUp(id)));
    ASSERT_EQ(other.NextMessage().grants.at(0).id, id);
  }
}

TEST_F(SessionSocketsTest, DestroyedTheyEndTheirSessions) {
  std::vector<Client> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(OpenAttached());
  // One of them mid-message, one without hello.
  ASSERT_TRUE(clients[0].SendBytes(clients[0].Frame(AcquireUp(1)).substr(0, 10)));
  clients.push_back(Open());
  sockets_.reset();
  EXPECT_EQ(f_.sessions().size(), 0u);
  for (Client& client : clients) {
    EXPECT_TRUE(absl::IsUnavailable(client.NextEnd().value().status));
    EXPECT_TRUE(client.Next().none());
  }
}

TEST_F(SessionSocketsTest, DestroyedTheyDoNotWaitForAClientThatDoesNotRead) {
  Client client = OpenAttached();
  std::string frame = client.Frame(AcquireUp(1, kKeys));
  EXPECT_TRUE(Eventually([&] {
    (void)client.SendSome(frame);
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
        Client client = OpenAttached();
        for (uint64_t id = 1; id <= kRequests; ++id) {
          ASSERT_TRUE(client.Send(AcquireUp(id, (id % 7) * 50)));
          if (id % 3 == 0) continue;  // two at once now and then
          if (id % 3 == 1 && id > 1) ASSERT_EQ(client.NextMessage().grants.at(0).id, id - 1);
          ASSERT_EQ(client.NextMessage().grants.at(0).id, id);
        }
        if ((t + s) % 4 == 0) continue;  // breaks off
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

// Revocations, drain and the end come from other threads: for the thread sanitizer.
TEST_F(SessionSocketsTest, SessionsEndFromAllSidesAtOnce) {
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
