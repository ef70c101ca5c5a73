#include "server/sockets/session_socket.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "tests/client/session/session_messages.h"
#include "tests/server/sessions/session_fixture.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using testing::AcquireUp;
using testing::AllocatedBytes;
using testing::Client;
using testing::HelloUp;
using testing::SessionFixture;
using testing::SocketPair;

constexpr size_t kKeys = 700;  // of a large acquire whose frame needs no ticket

// ---- One socket.  The test plays the loop, and the time is what the test says.

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

  void SetUp() override { Start(Shares::Sizes().memory_limit); }
  // `room` is the limit for bytes of messages.
  void Start(ByteCount room) {
    socket_.reset();
    session_.reset();
    fixture_.emplace(Shares::Sizes{.memory_limit = room, .pool = MiB(32)});
    SocketPair ends;
    socket_ = std::make_unique<SessionSocket>(SessionSocket::Context{f().deps(), f().sessions()},
                                              std::move(ends.ours), 7, waker_);
    const AttachedProcess process = f().Process(getpid(), true);
    holder_ = HolderOf(process);
    auto session = f().sessions().Add(f().deps(), process, holder_, "test", *socket_);
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *session;
    socket_->Begin(*std::move(session));
    client_.emplace(std::move(ends.theirs));
    ASSERT_TRUE(client_->Send(HelloUp()));
    EXPECT_TRUE(socket_->OnEvent(kStart).heard);
    EXPECT_TRUE(client_->NextMessage().attached);
  }
  // Runs the loop until the available input is handled.  Returns what the socket waits for then.
  SessionSocket::Next RunDry(TimePoint now) {
    SessionSocket::Next next = socket_->OnEvent(now);
    while (next.heard) next = socket_->OnEvent(now);
    return next;
  }
  // Sends large requests without reading the answers until the daemon reads no more.  Returns the
  // id of the last request; the part of it that was not sent is in unsent_.
  uint64_t Flood() {
    for (uint64_t id = 1;; ++id) {
      const std::string frame = client_->Frame(AcquireUp(id, kKeys));
      std::string_view left = client_->SendSome(frame);
      while (!left.empty()) {
        if (!RunDry(kStart).read) {
          unsent_ = left;
          return id;
        }
        left = client_->SendSome(left);
      }
    }
  }
  void ExpectLate(TimePoint now) {
    EXPECT_TRUE(socket_->OnEvent(now).over) << "the END frame was sent";
    EXPECT_EQ(f().sessions().size(), 0u);
    const auto end = client_->NextEnd();
    ASSERT_TRUE(end);
    EXPECT_TRUE(absl::IsDeadlineExceeded(end->status)) << end->status;
  }
  // Runs `body` while another thread runs the loop, all at the time `now`.
  template <class Body>
  void Beside(TimePoint now, Body body) {
    std::atomic<bool> done{false};
    std::thread loop([&] {
      while (!done) {
        (void)socket_->OnEvent(now);
        std::this_thread::yield();
      }
    });
    body();
    done = true;
    loop.join();
  }
  // Sends messages, which the client does not read, until `bytes` wait.  Returns the number of
  // messages.
  size_t FillQueueTo(size_t bytes) {
    wire::Down down;
    down.durable.push_back({.variant = 0, .digests = std::vector<Digest>(30)});
    std::string frame;
    SessionCodec().Append(down, &frame);
    for (size_t messages = 0;; ++messages) {
      int on_the_way = 0;
      LARDER_CHECK(ioctl(client_->socket(), FIONREAD, &on_the_way) == 0);
      if (messages * frame.size() >= bytes + static_cast<size_t>(on_the_way)) return messages;
      socket_->Send(down);
    }
  }
  uint64_t acquires() { return f().counters().requests_acquire.value(); }
  uint64_t admitted_bytes() { return f().shares().held(ShareKind::kMessageBytes); }
  uint64_t unread_bytes() { return f().shares().held(ShareKind::kUnreadBytes); }
  // Takes bytes of messages for a process of another user, or for another process of the session's
  // user.
  Shares::Answer OthersTake(ByteCount bytes, uid_t uid = 4711) {
    return f()
        .shares()
        .Of({.uid = uid, .process = ProcessId{4711}, .pid = 1})
        .Take(ShareKind::kMessageBytes, bytes);
  }
  SessionFixture& f() { return *fixture_; }

  std::optional<SessionFixture> fixture_;
  ShareHolder holder_;  // the session's process
  CountingWaker waker_;
  std::shared_ptr<AttachedSession> session_;
  std::unique_ptr<SessionSocket> socket_;
  std::optional<Client> client_;
  std::string unsent_;
};

TEST_F(SessionSocketTest, WaitsForInputWhenIdle) {
  const SessionSocket::Next next = socket_->OnEvent(kStart);
  EXPECT_TRUE(next.read);
  EXPECT_FALSE(next.heard || next.write || next.over);
  EXPECT_EQ(next.due, TimePoint::max());
}

TEST_F(SessionSocketTest, AMessageThatStopsHalfwayEndsTheSession) {
  const std::string frame = client_->Frame(AcquireUp(1));
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 3)));
  const TimePoint due = kStart + SessionSocket::kPauseMax;
  EXPECT_EQ(socket_->OnEvent(kStart).due, due);
  SessionSocket::Next next = socket_->OnEvent(due - milliseconds(1));
  EXPECT_EQ(next.due, due);
  EXPECT_TRUE(next.read && !next.over);
  ExpectLate(due);
}

TEST_F(SessionSocketTest, AMessageThatArrivesTooSlowlyEndsTheSession) {
  const std::string frame = client_->Frame(AcquireUp(1, 100));
  TimePoint now = kStart;
  size_t at = 0;
  for (; now < kStart + SessionSocket::kMessageMax; now += SessionSocket::kPauseMax / 2) {
    ASSERT_TRUE(client_->SendBytes(frame.substr(at++, 1)));
    EXPECT_TRUE(socket_->OnEvent(now).read);
  }
  ExpectLate(now);
}

// A message is late only if its bytes have not arrived: a daemon that was stopped for a while reads
// first.
TEST_F(SessionSocketTest, AStoppedDaemonReadsBeforeItJudgesAMessageLate) {
  const std::string frame = client_->Frame(AcquireUp(1, 600));
  ASSERT_GT(frame.size(), SessionFrameReader::kRoomBytes / 2);
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 10)));
  EXPECT_TRUE(socket_->OnEvent(kStart).read);
  ASSERT_TRUE(client_->SendBytes(frame.substr(10)));
  EXPECT_TRUE(RunDry(kStart + std::chrono::hours(1)).read);
  EXPECT_EQ(client_->NextMessage().grants.at(0).id, 1u);
}

TEST_F(SessionSocketTest, ACompleteMessageHasNoDeadline) {
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

// The deadline starts again with each message, even if the socket always has an incomplete message.
TEST_F(SessionSocketTest, EachMessageHasItsOwnDeadline) {
  const std::string frame = client_->Frame(AcquireUp(1));
  const std::string shifted = frame.substr(10) + frame.substr(0, 10);
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 10)));
  TimePoint now = kStart;
  EXPECT_EQ(socket_->OnEvent(now).due, now + SessionSocket::kPauseMax);
  for (int i = 0; i < 5; ++i) {
    now += SessionSocket::kPauseMax - milliseconds(1);
    ASSERT_TRUE(client_->SendBytes(shifted));
    const SessionSocket::Next next = socket_->OnEvent(now);
    EXPECT_TRUE(next.heard && !next.over);
    EXPECT_EQ(next.due, now + SessionSocket::kPauseMax);
  }
}

TEST_F(SessionSocketTest, AnswersToAClientThatDoesNotReadAreBounded) {
  const uint64_t last = Flood();
  // The daemon has handled as many requests as fit the queue and the socket, and not one more,
  // whatever the client sends.
  const uint64_t answered = acquires();
  EXPECT_GT(answered * kKeys, SessionSocket::kQueuedMax / 8)
      << "the daemon stopped for another reason";
  EXPECT_LT(answered, last) << "some requests must wait unread";
  for (int i = 0; i < 100; ++i) {
    const SessionSocket::Next next = socket_->OnEvent(kStart + i * std::chrono::hours(1));
    EXPECT_TRUE(next.write && !next.read && !next.heard && !next.over);
    EXPECT_EQ(next.due, TimePoint::max()) << "no deadline applies while the daemon does not read";
  }
  EXPECT_EQ(acquires(), answered);
  // The client reads: the daemon continues, and no answer is lost or out of order.
  const TimePoint later = kStart + std::chrono::hours(1000);
  Beside(later, [&] {
    std::thread writer([&] { EXPECT_TRUE(client_->SendBytes(unsent_)); });
    for (uint64_t id = 1; id <= last; ++id) {
      const wire::Grant grant = client_->NextMessage().grants.at(0);
      EXPECT_EQ(grant.id, id);
      EXPECT_EQ(grant.blocks.size(), kKeys);
    }
    writer.join();
  });
  const SessionSocket::Next next = RunDry(later);
  EXPECT_TRUE(next.read && !next.write && !next.over);
}

// A client that sends many messages at once gets its turn, and then other clients get theirs.
TEST_F(SessionSocketTest, MessagesOfOneReceiveAreHandledInTurns) {
  constexpr uint64_t kRequests = 100;
  std::string bytes;
  for (uint64_t id = 1; id <= kRequests; ++id) bytes += client_->Frame(AcquireUp(id));
  ASSERT_LT(bytes.size(), SessionFrameReader::kRoomBytes);
  ASSERT_TRUE(client_->SendBytes(bytes));
  uint64_t turns = 0;
  for (uint64_t before = 0; acquires() < kRequests; before = acquires(), ++turns) {
    ASSERT_LT(turns, kRequests);
    const int woken = waker_.wakes;
    const SessionSocket::Next next = socket_->OnEvent(kStart);
    EXPECT_TRUE(next.heard);
    EXPECT_LE(acquires() - before, 16u);
    if (acquires() < kRequests) {
      EXPECT_EQ(waker_.wakes, woken + 1)
          << "without a wake-up the loop would not return to this socket";
    }
  }
  EXPECT_GE(turns, kRequests / 16);
  for (uint64_t id = 1; id <= kRequests; ++id)
    EXPECT_EQ(client_->NextMessage().grants.at(0).id, id);
  EXPECT_TRUE(RunDry(kStart).read);
}

// The requests of one receive may have more answers than the queue can take.
TEST_F(SessionSocketTest, WaitingRequestsAreHandledWhenTheQueueDrains) {
  const size_t filled = FillQueueTo(SessionSocket::kQueuedMax - 1000);
  constexpr uint64_t kRequests = 400;
  std::string bytes;
  for (uint64_t id = 1; id <= kRequests; ++id) bytes += client_->Frame(AcquireUp(id));
  ASSERT_LT(bytes.size(), SessionFrameReader::kRoomBytes);
  ASSERT_TRUE(client_->SendBytes(bytes));
  EXPECT_FALSE(RunDry(kStart).read);
  EXPECT_GT(acquires(), 0u);
  EXPECT_LT(acquires(), kRequests);
  // All of the requests were received already, so no input makes the daemon look at the socket
  // again.
  Beside(kStart, [&] {
    for (size_t i = 0; i < filled; ++i) EXPECT_EQ(client_->NextMessage().durable.size(), 1u);
    for (uint64_t id = 1; id <= kRequests; ++id)
      EXPECT_EQ(client_->NextMessage().grants.at(0).id, id);
  });
  EXPECT_EQ(acquires(), kRequests);
}

TEST_F(SessionSocketTest, AMessageIsNotLateWhenTheDaemonDoesNotRead) {
  const std::string frame = client_->Frame(AcquireUp(1));
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 10)));
  const TimePoint due = socket_->OnEvent(kStart).due;
  const size_t filled = FillQueueTo(SessionSocket::kQueuedMax + 1);
  ASSERT_TRUE(client_->SendBytes(frame.substr(10)));
  const TimePoint later = due + std::chrono::hours(1);
  const SessionSocket::Next next = socket_->OnEvent(later);
  EXPECT_FALSE(next.read || next.over);
  EXPECT_EQ(next.due, TimePoint::max());
  Beside(later, [&] {
    for (size_t i = 0; i < filled; ++i) EXPECT_EQ(client_->NextMessage().durable.size(), 1u);
    EXPECT_EQ(client_->NextMessage().grants.at(0).id, 1u);
  });
}

// A client that always leaves some answers unread must not make the queue grow either.
TEST_F(SessionSocketTest, AClientThatReadsSlowlyDoesNotMakeTheQueueGrow) {
  wire::Down down;
  down.durable.push_back({.variant = 0, .digests = std::vector<Digest>(1024)});
  std::string frame;
  SessionCodec().Append(down, &frame);
  for (size_t sent = 0; sent < SessionSocket::kQueuedMax; sent += frame.size()) socket_->Send(down);
  const size_t before = AllocatedBytes();
  for (size_t sent = 0; sent < (64 << 20); sent += frame.size()) {
    socket_->Send(down);
    for (size_t taken = 0; taken < frame.size();) {
      ASSERT_TRUE(socket_->OnEvent(kStart).write)
          << "the queue ran empty, so this test proves nothing";
      taken += client_->Discard(frame.size() - taken);
    }
  }
  const size_t after = AllocatedBytes();
  EXPECT_LT(after, before + (8 << 20)) << "64 MiB went through a queue of 1 MiB";
}

TEST_F(SessionSocketTest, TheEndIsSentToAClientThatReadsLate) {
  const uint64_t last = Flood();
  const uint64_t answered = acquires();
  ASSERT_LT(answered, last);
  session_->Abandon();
  const SessionSocket::Next next = socket_->OnEvent(kStart);
  EXPECT_EQ(f().sessions().size(), 0u) << "what the session holds is released at once";
  EXPECT_TRUE(next.write && !next.read && !next.over);
  EXPECT_EQ(next.due, kStart + SessionSocket::kLinger);
  Beside(next.due - milliseconds(1), [&] {
    for (uint64_t id = 1; id <= answered; ++id)
      EXPECT_EQ(client_->NextMessage().grants.at(0).id, id);
    const auto end = client_->NextEnd();
    EXPECT_TRUE(end && absl::IsUnavailable(end->status));
  });
  EXPECT_TRUE(socket_->OnEvent(kStart).over);
}

TEST_F(SessionSocketTest, TheEndDoesNotWaitForever) {
  (void)Flood();
  session_->Abandon();
  const SessionSocket::Next next = socket_->OnEvent(kStart);
  EXPECT_FALSE(socket_->OnEvent(next.due - milliseconds(1)).over);
  EXPECT_TRUE(socket_->OnEvent(next.due).over);
}

TEST_F(SessionSocketTest, AbandonWakesTheLoopOnce) {
  EXPECT_EQ(waker_.wakes, 0);
  session_->Abandon();
  session_->Abandon();
  EXPECT_EQ(waker_.wakes, 1);
  EXPECT_TRUE(socket_->OnEvent(kStart).over);
  EXPECT_TRUE(absl::IsUnavailable(client_->NextEnd().value().status));
}

TEST_F(SessionSocketTest, AnswersThatDoNotFitTheSocketWakeTheLoop) {
  wire::Down down;
  down.durable.push_back({.variant = 0, .digests = std::vector<Digest>(4096)});
  for (int i = 0; i < 100; ++i) socket_->Send(down);
  EXPECT_EQ(waker_.wakes, 1) << "one wake-up until the loop has run";
  EXPECT_TRUE(socket_->OnEvent(kStart).write);
  socket_->Send(down);
  EXPECT_EQ(waker_.wakes, 2);
}

TEST_F(SessionSocketTest, ADeadProcessesSocketDoesNotLinger) {
  (void)Flood();
  session_->OnUnmapped();
  EXPECT_TRUE(socket_->OnEvent(kStart).over) << "a dead process's socket must not linger";
  EXPECT_EQ(f().sessions().size(), 0u);
}

TEST_F(SessionSocketTest, LongMessagesPassTheAdmissionAndGoToAWorker) {
  const std::string frame = client_->Frame(AcquireUp(1, wire::kKeysMax));
  const size_t body = frame.size() - kSessionFrameHeaderBytes;
  ASSERT_GT(body, SessionSocket::kSmallBodyBytes);
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, frame.size() - 1)));
  EXPECT_TRUE(RunDry(kStart).read);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(socket_->OnEvent(kStart).read);
  EXPECT_EQ(admitted_bytes(), 2 * body);
  ASSERT_TRUE(client_->SendBytes(frame.substr(frame.size() - 1)));
  EXPECT_FALSE(socket_->OnEvent(kStart).read)
      << "nothing is read while a worker handles the message";
  while (waker_.wakes == 0) std::this_thread::yield();
  const SessionSocket::Next next = socket_->OnEvent(kStart);
  EXPECT_TRUE(next.heard && next.read);
  EXPECT_EQ(acquires(), 1u);
  EXPECT_EQ(admitted_bytes(), 0u);
  EXPECT_EQ(client_->NextMessage().grants.at(0).id, 1u);
}

// Answers stay in order, although a worker handles one of the messages.
TEST_F(SessionSocketTest, MessagesBehindALongOneWaitForIt) {
  const std::string frames = client_->Frame(AcquireUp(1, wire::kKeysMax)) +
                             client_->Frame(AcquireUp(2)) + client_->Frame(AcquireUp(3));
  Beside(kStart, [&] {
    ASSERT_TRUE(client_->SendBytes(frames));
    for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(client_->NextMessage().grants.at(0).id, id);
  });
}

TEST_F(SessionSocketTest, AMessageWaitsForBytesThatOthersHold) {
  Start(KiB(500));
  std::optional<Shares::Answer> others = OthersTake(KiB(450));
  const std::string frame = client_->Frame(AcquireUp(1, wire::kKeysMax));
  std::thread writer([&] { EXPECT_TRUE(client_->SendBytes(frame)); });
  TimePoint now = kStart;
  SessionSocket::Next next = socket_->OnEvent(now);
  while (next.read) next = socket_->OnEvent(now);
  EXPECT_FALSE(next.over);
  EXPECT_EQ(next.due, now + SessionSocket::kRetry);
  EXPECT_GT(f().counters().calls_overloaded.value(), 0u);
  now += SessionSocket::kMessageMax / 2;
  EXPECT_FALSE(socket_->OnEvent(now).over)
      << "the message is not late while the daemon does not read";
  others.reset();
  now = now + SessionSocket::kRetry;
  Beside(now, [&] {
    EXPECT_EQ(client_->NextMessage().grants.at(0).id, 1u);
    while (admitted_bytes() > 0) std::this_thread::yield();  // the worker is done with it then
  });
  writer.join();
  EXPECT_EQ(f().counters().calls_overloaded.value(), 1u)
      << "a message counts once, however often it retried";
}

// The received part of a message stays charged while the message waits for more bytes of the share.
TEST_F(SessionSocketTest, AWaitingMessageKeepsItsCharge) {
  Start(KiB(500));
  wire::Up large = AcquireUp(1, wire::kKeysMax);
  for (uint64_t id = 2; id <= 4; ++id) {
    large.acquires.push_back(AcquireUp(id, wire::kKeysMax).acquires[0]);
  }
  const std::string frame = client_->Frame(large);
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 20'000)));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(socket_->OnEvent(kStart).read);
  const uint64_t charged = admitted_bytes();
  EXPECT_GT(charged, 0u);
  std::optional<Shares::Answer> others = OthersTake(ByteCount(KiB(500).value() - charged));
  ASSERT_TRUE(others->admitted());
  ASSERT_TRUE(client_->SendBytes(frame.substr(20'000, 150'000)));
  SessionSocket::Next next = socket_->OnEvent(kStart);
  while (next.read) next = socket_->OnEvent(kStart);
  EXPECT_EQ(admitted_bytes(), KiB(500).value());
  EXPECT_FALSE(socket_->OnEvent(kStart + SessionSocket::kMessageMax - milliseconds(1)).over);
  EXPECT_FALSE(socket_->OnEvent(kStart + 10 * SessionSocket::kMessageMax).over)
      << "the session must not end because others hold the share";
  others.reset();
  const TimePoint later = kStart + 11 * SessionSocket::kMessageMax;
  EXPECT_TRUE(RunDry(later).read) << "the message is not late, because the daemon did not read";
}

// Without this rule, two messages could wait for each other's bytes.
TEST_F(SessionSocketTest, AWaitingMessageThatHasItsPartEndsTheSession) {
  Start(KiB(500));
  wire::Up large = AcquireUp(1, wire::kKeysMax);
  for (uint64_t id = 2; id <= 4; ++id) {
    large.acquires.push_back(AcquireUp(id, wire::kKeysMax).acquires[0]);
  }
  const std::string frame = client_->Frame(large);
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 150'000)));
  SessionSocket::Next next = socket_->OnEvent(kStart);
  for (int i = 0; i < 20; ++i) next = socket_->OnEvent(kStart);
  const uint64_t charged = admitted_bytes();
  ASSERT_GT(charged, KiB(250).value());
  const Shares::Answer others = OthersTake(ByteCount(KiB(500).value() - charged));
  ASSERT_TRUE(others.admitted());
  std::thread writer([&] { (void)client_->SendBytes(frame.substr(150'000)); });
  next = socket_->OnEvent(kStart);
  while (next.read) next = socket_->OnEvent(kStart);
  EXPECT_FALSE(socket_->OnEvent(kStart + SessionSocket::kMessageMax - milliseconds(1)).over);
  next = socket_->OnEvent(kStart + SessionSocket::kMessageMax);
  EXPECT_EQ(f().sessions().size(), 0u) << "the session must end now";
  socket_.reset();
  writer.join();
}

// Other processes may keep the bytes that the message waits for as long as they like.
TEST_F(SessionSocketTest, AHangUpWhileAMessageWaitsEndsTheSession) {
  Start(KiB(500));
  const Shares::Answer others = OthersTake(KiB(450));
  const std::string frame = client_->Frame(AcquireUp(1, wire::kKeysMax));
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 60'000)));
  SessionSocket::Next next = socket_->OnEvent(kStart);
  while (next.read) next = socket_->OnEvent(kStart);
  ASSERT_EQ(next.due, kStart + SessionSocket::kRetry);
  client_.reset();
  EXPECT_FALSE(socket_->OnEvent(kStart).over) << "the loop has not reported the hang-up yet";
  EXPECT_TRUE(socket_->OnEvent(kStart, /*hung_up=*/true).over);
  EXPECT_EQ(f().sessions().size(), 0u);
}

TEST_F(SessionSocketTest, UnreadAnswersAreChargedUntilTheyAreRead) {
  const size_t messages = FillQueueTo(SessionSocket::kFreeAnswerBytes + 1'000);
  EXPECT_GT(unread_bytes(), SessionSocket::kFreeAnswerBytes);
  for (size_t i = 0; i < messages; ++i) {
    (void)client_->NextMessage();
    (void)socket_->OnEvent(kStart);
  }
  EXPECT_EQ(unread_bytes(), 0u);
  const Shares::Account account = f().shares().Of(holder_);
  const Shares::Answer own =
      account.Take(ShareKind::kUnreadBytes, account.Room(ShareKind::kUnreadBytes));
  ASSERT_TRUE(own.admitted());
  (void)FillQueueTo(2 * SessionSocket::kFreeAnswerBytes);
  (void)socket_->OnEvent(kStart);
  EXPECT_EQ(f().sessions().size(), 0u)
      << "the session ends if its own process holds the rest of its share";
}

TEST_F(SessionSocketTest, AMessageThatExceedsTheLimitEndsTheSession) {
  Start(KiB(50));
  ASSERT_TRUE(client_->SendBytes(client_->Frame(AcquireUp(1, wire::kKeysMax)).substr(0, 60'000)));
  SessionSocket::Next next = socket_->OnEvent(kStart);
  while (!next.over && next.read) next = socket_->OnEvent(kStart);
  EXPECT_TRUE(next.over);
  const SessionEnd end = client_->NextEnd().value();
  EXPECT_TRUE(absl::IsResourceExhausted(end.status)) << end.status;
  EXPECT_EQ(end.retry_after_ms, 0u) << "a retry would be refused again";
  EXPECT_EQ(admitted_bytes(), 0u);
  EXPECT_EQ(acquires(), 0u);
}

TEST_F(SessionSocketTest, AnAnswerLongerThanAnyMessageEndsTheSession) {
  wire::Down down;
  down.durable.push_back({.variant = 0, .digests = std::vector<Digest>(5 << 18)});  // 20 MiB
  socket_->Send(std::move(down));
  EXPECT_TRUE(socket_->OnEvent(kStart).over);
  const SessionEnd end = client_->NextEnd().value();
  EXPECT_TRUE(absl::IsResourceExhausted(end.status)) << end.status;
}

// A client that shuts down only its reading side loses its session, as over gRPC.
TEST_F(SessionSocketTest, AClientThatShutsDownReadingLosesItsSession) {
  ASSERT_EQ(shutdown(client_->socket(), SHUT_RD), 0);
  ASSERT_TRUE(client_->Send(AcquireUp(1)));
  EXPECT_TRUE(RunDry(kStart).over);
  EXPECT_EQ(f().sessions().size(), 0u);
}

TEST_F(SessionSocketTest, AnEndedSessionReleasesItsMessageBytes) {
  const std::string frame = client_->Frame(AcquireUp(1, wire::kKeysMax));
  ASSERT_TRUE(client_->SendBytes(frame.substr(0, 60'000)));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(socket_->OnEvent(kStart).read);
  EXPECT_GT(admitted_bytes(), 0u);
  session_->Abandon();
  (void)socket_->OnEvent(kStart);
  EXPECT_EQ(admitted_bytes(), 0u);
}

TEST_F(SessionSocketTest, DestructionEndsTheSession) {
  socket_.reset();
  EXPECT_EQ(f().sessions().size(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(client_->NextEnd().value().status));
  EXPECT_TRUE(client_->Next().none());
}

}  // namespace
}  // namespace larder
