#include "client/local/local_session_stream.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "storage/mutex.h"
#include "tests/client/session/session_messages.h"
#include "tests/client/session/session_peer.h"
#include "tests/proto/sample_messages.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using testing::AcquireUp;
using testing::AllocatedBytes;
using testing::SocketPair;

using Daemon = testing::SessionPeer<wire::Down, wire::Up>;

constexpr std::chrono::seconds kLong{60};  // no thread waits this long unless something hangs
constexpr size_t kLargeKeys = 4000;        // a message of 64 KiB
constexpr uint64_t kMoreThanTheSocketTakes = 40;

wire::Down AttachedDown() {
  wire::Down down;
  down.attached = wire::sample::FullDown().attached;
  return down;
}

wire::Down AnswerDown(uint64_t id) {
  wire::Down down;
  down.published.push_back({.id = id, .status = {BlockStatus::kOk}, .message = ""});
  return down;
}

TimePoint In(milliseconds time) { return std::chrono::steady_clock::now() + time; }

// A thread in Pump.  When the object is destroyed, the thread is woken and joined.
class Pumper {
 public:
  Pumper(SessionStream& stream, uint64_t seen) : stream_(stream) {
    thread_ = std::thread([this, seen] {
      id_ = gettid();
      stream_.Pump(seen, TimePoint(), In(kLong));
      returned_ = true;
    });
  }
  ~Pumper() {
    if (!thread_.joinable()) return;
    stream_.Wake();
    thread_.join();
  }
  // Returns true once the thread sleeps with nothing to do.  A thread that waits for no lock can
  // then only be in poll.
  [[nodiscard]] bool Sleeps() const {
    const auto until = In(kLong);
    while (!returned_ && std::chrono::steady_clock::now() < until) {
      std::string number, name, state;
      std::ifstream(absl::StrCat("/proc/self/task/", id_.load(), "/stat")) >> number >> name >>
          state;
      if (state == "S") return true;
      std::this_thread::yield();
    }
    return false;
  }
  void Join() { thread_.join(); }

 private:
  SessionStream& stream_;
  std::atomic<pid_t> id_{0};
  std::atomic<bool> returned_{false};
  std::thread thread_;
};

class LocalSessionStreamTest : public ::testing::Test {
 protected:
  LocalSessionStreamTest() {
    SocketPair ends;
    socket_ = std::move(ends.ours);
    daemon_.emplace(std::move(ends.theirs));
  }
  absl::Status Open(milliseconds deadline = kLong) {
    fd_ = socket_.get();
    wire::Hello hello;
    hello.engine_id = "engine";
    SessionInbox::Handlers handlers{
        .on_down = [this](wire::Down down) { downs_.push_back(std::move(down)); },
        .on_broken = [this](const absl::Status& why) { broken_.push_back(why); }};
    auto opened =
        LocalSessionStream::Open(std::move(socket_), hello, std::move(handlers), deadline);
    if (!opened.ok()) return opened.status();
    stream_ = *std::move(opened);
    return absl::OkStatus();
  }
  void Attach() {
    ASSERT_TRUE(daemon_->Send(AttachedDown()));  // sent before the hello arrives
    ASSERT_TRUE(Open().ok());
    const wire::Up hello = daemon_->NextMessage();
    ASSERT_TRUE(hello.hello);
    EXPECT_EQ(hello.hello->engine_id, "engine");
    downs_.clear();
  }
  // Pumps until everything that has arrived is read.
  void PumpAll() {
    for (uint64_t seen = ~uint64_t{0}; seen != stream_->arrivals();) {
      seen = stream_->arrivals();
      stream_->Pump(seen, TimePoint(), TimePoint());
    }
  }
  // Pumps until the stream has ended.
  void PumpToTheEnd() {
    while (broken_.empty()) stream_->Pump(stream_->arrivals(), TimePoint(), In(kLong));
  }
  // Sends messages that the daemon does not read.  When this returns, some of them certainly wait
  // in the queue.
  void SendMoreThanTheSocketTakes() {
    for (uint64_t id = 1; id <= kMoreThanTheSocketTakes; ++id)
      ASSERT_TRUE(stream_->Send(AcquireUp(id, kLargeKeys)).ok());
    ASSERT_TRUE(WaitsToBeSent());
  }
  // Returns true if the socket takes no bytes at present.
  [[nodiscard]] bool WaitsToBeSent() const {
    pollfd writable{.fd = fd_, .events = POLLOUT, .revents = 0};
    return poll(&writable, 1, 0) == 0;
  }
  void ReadWhatWasSent() {
    for (uint64_t id = 1; id <= kMoreThanTheSocketTakes; ++id)
      ASSERT_EQ(daemon_->NextMessage(), AcquireUp(id, kLargeKeys));
  }

  FileDescriptor socket_;
  int fd_ = -1;  // the same, when the stream owns it
  std::optional<Daemon> daemon_;
  // Written by the thread that pumps.
  std::vector<wire::Down> downs_;
  std::vector<absl::Status> broken_;
  std::unique_ptr<SessionStream> stream_;
};

// ---- Opening.

TEST_F(LocalSessionStreamTest, AttachedIsTheAnswerToHello) {
  Attach();
  EXPECT_EQ(stream_->attached(), *AttachedDown().attached);
  EXPECT_TRUE(broken_.empty());
}

TEST_F(LocalSessionStreamTest, OpenReturnsTheReasonOfARefusal) {
  const absl::Status why = absl::ResourceExhaustedError("too many: retry after 500 ms");
  ASSERT_TRUE(daemon_->SendEnd({why, 500}));
  EXPECT_EQ(Open(), why);
}

TEST_F(LocalSessionStreamTest, AnOkEndBeforeAttachedIsUnavailable) {
  ASSERT_TRUE(daemon_->SendEnd({}));
  EXPECT_TRUE(absl::IsUnavailable(Open()));
}

TEST_F(LocalSessionStreamTest, OpenWithoutADaemonIsUnavailable) {
  daemon_->Break();
  EXPECT_TRUE(absl::IsUnavailable(Open()));
}

TEST_F(LocalSessionStreamTest, OpenOfADaemonThatDiesIsUnavailable) {
  std::thread dies([&] {
    EXPECT_TRUE(daemon_->NextMessage().hello);
    daemon_->Break();
  });
  EXPECT_TRUE(absl::IsUnavailable(Open()));
  dies.join();
}

TEST_F(LocalSessionStreamTest, OpenDoesNotWaitForever) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(Open(milliseconds(20))));
  EXPECT_TRUE(daemon_->NextMessage().hello);
  EXPECT_TRUE(daemon_->Next().none()) << "a socket that failed to open must be closed";
}

TEST_F(LocalSessionStreamTest, OpenRefusesBytesThatAreNotFrames) {
  ASSERT_TRUE(daemon_->SendBytes("HTTP/1.1 400 Bad Request"));
  EXPECT_TRUE(absl::IsUnavailable(Open()));
  EXPECT_EQ(broken_.size(), 1u);
}

TEST_F(LocalSessionStreamTest, OnlyTheFirstAttachedCounts) {
  Attach();
  wire::Down other = AttachedDown();
  other.attached->session = SessionId{99};
  ASSERT_TRUE(daemon_->Send(other));
  PumpAll();
  EXPECT_EQ(stream_->attached(), *AttachedDown().attached);
  ASSERT_EQ(downs_.size(), 1u);
  EXPECT_FALSE(downs_[0].attached);
}

// ---- Messages.

TEST_F(LocalSessionStreamTest, MessagesAreSentUnchanged) {
  Attach();
  wire::Up up = wire::sample::FullUp();
  up.hello.reset();
  EXPECT_TRUE(stream_->Send(up).ok());
  EXPECT_TRUE(stream_->Send(AcquireUp(1)).ok());
  EXPECT_EQ(daemon_->NextMessage(), up);
  EXPECT_EQ(daemon_->NextMessage(), AcquireUp(1));
}

TEST_F(LocalSessionStreamTest, APumpHandsOverOneMessageAtATime) {
  Attach();
  std::string bytes;
  for (uint64_t id = 1; id <= 100; ++id) bytes += daemon_->Frame(AnswerDown(id));
  ASSERT_TRUE(daemon_->SendBytes(bytes));
  for (uint64_t id = 1; id <= 100; ++id) {
    const uint64_t seen = stream_->arrivals();
    stream_->Pump(seen, TimePoint(), In(kLong));
    EXPECT_EQ(stream_->arrivals(), seen + 1);
    ASSERT_EQ(downs_.size(), id);
    EXPECT_EQ(downs_.back(), AnswerDown(id));
  }
  // If a message has been handed over since, Pump returns at once.
  stream_->Pump(stream_->arrivals() - 1, TimePoint(), In(kLong));
  EXPECT_EQ(downs_.size(), 100u);
}

TEST_F(LocalSessionStreamTest, APumpAfterItsDeadlineTakesArrivedMessages) {
  Attach();
  stream_->Pump(stream_->arrivals(), TimePoint(), TimePoint());
  EXPECT_TRUE(downs_.empty());
  ASSERT_TRUE(daemon_->Send(AnswerDown(1)));
  stream_->Pump(stream_->arrivals(), TimePoint(), TimePoint());
  EXPECT_EQ(downs_.size(), 1u);
  stream_->Pump(stream_->arrivals(), In(kLong), In(milliseconds(1)));  // spins until then
  EXPECT_EQ(downs_.size(), 1u);
}

TEST_F(LocalSessionStreamTest, AMessageWakesAPump) {
  Attach();
  Pumper pumper(*stream_, stream_->arrivals());
  ASSERT_TRUE(pumper.Sleeps());
  const std::string frame = daemon_->Frame(AnswerDown(1));
  ASSERT_TRUE(daemon_->SendBytes(frame.substr(0, 5)));  // half a message does not count
  ASSERT_TRUE(pumper.Sleeps());
  ASSERT_TRUE(daemon_->SendBytes(frame.substr(5)));
  pumper.Join();
  EXPECT_EQ(downs_, std::vector<wire::Down>{AnswerDown(1)});
}

TEST_F(LocalSessionStreamTest, WakeEndsASleepingPump) {
  Attach();
  Pumper pumper(*stream_, stream_->arrivals());
  ASSERT_TRUE(pumper.Sleeps());
  stream_->Wake();
  pumper.Join();
  stream_->Pump(stream_->arrivals(), TimePoint(), TimePoint::max());  // also ends later calls
  EXPECT_TRUE(downs_.empty());
  EXPECT_TRUE(broken_.empty());
}

// ---- A daemon that does not read.

TEST_F(LocalSessionStreamTest, SendDoesNotBlock) {
  Attach();
  SendMoreThanTheSocketTakes();
  // No thread sleeps in Pump, so the next calls of Pump continue to send.
  std::atomic<bool> read{false};
  std::thread daemon([&] {
    ReadWhatWasSent();
    read = true;
  });
  while (!read) PumpAll();
  daemon.join();
}

TEST_F(LocalSessionStreamTest, ASleepingPumpSendsWhatAnotherThreadQueued) {
  Attach();
  Pumper pumper(*stream_, stream_->arrivals());
  ASSERT_TRUE(pumper.Sleeps());
  SendMoreThanTheSocketTakes();
  ASSERT_TRUE(pumper.Sleeps()) << "while the socket takes nothing, the thread must sleep";
  ReadWhatWasSent();
  ASSERT_TRUE(daemon_->Send(AnswerDown(1)));
  pumper.Join();
  EXPECT_EQ(downs_.size(), 1u);
}

TEST_F(LocalSessionStreamTest, TooManyUnsentBytesLoseTheSession) {
  Attach();
  absl::Status status;
  uint64_t sent = 0;
  for (; status.ok(); ++sent) {
    ASSERT_LE(sent * kLargeKeys * kDigestBytes, 2 * SessionStream::kQueuedBytesMax);
    status = stream_->Send(AcquireUp(sent + 1, kLargeKeys));
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GT(sent * (kLargeKeys + 1) * kDigestBytes, SessionStream::kQueuedBytesMax);
  EXPECT_TRUE(absl::IsUnavailable(stream_->Send(AcquireUp(1))));
  PumpToTheEnd();
  ASSERT_EQ(broken_.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(broken_[0])) << broken_[0];
  // The daemon finds what the socket had taken, and nothing after it.
  uint64_t read = 0;
  while (!daemon_->Next().none()) ++read;
  EXPECT_LT(read, sent);
  EXPECT_FALSE(stream_->Close(kLong));
  EXPECT_EQ(broken_.size(), 1u);
}

TEST_F(LocalSessionStreamTest, ADaemonThatReadsSlowlyDoesNotMakeTheQueueGrow) {
  Attach();
  SendMoreThanTheSocketTakes();
  const wire::Up up = AcquireUp(1, kLargeKeys);
  std::string frame;
  SessionCodec().Append(up, &frame);
  const size_t before = AllocatedBytes();
  for (size_t sent = 0; sent < (64 << 20); sent += frame.size()) {
    ASSERT_TRUE(stream_->Send(up).ok());
    for (size_t taken = 0; taken < frame.size();) {
      PumpAll();
      ASSERT_TRUE(WaitsToBeSent()) << "the queue ran empty, so this test proves nothing";
      taken += daemon_->Discard(frame.size() - taken);
    }
  }
  const size_t after = AllocatedBytes();
  EXPECT_LT(after, before + (8 << 20)) << "64 MiB went through a queue of less than 4 MiB";
}

// ---- Ending.

TEST_F(LocalSessionStreamTest, CloseSucceedsWhenTheDaemonSendsAnOkEnd) {
  Attach();
  std::thread daemon([&] {
    EXPECT_EQ(daemon_->NextMessage(), AcquireUp(1));
    EXPECT_TRUE(daemon_->Next().none()) << "the client must half-close the socket";
    EXPECT_TRUE(daemon_->Send(AnswerDown(1)));
    EXPECT_TRUE(daemon_->SendEnd({}));
  });
  EXPECT_TRUE(stream_->Send(AcquireUp(1)).ok());
  EXPECT_TRUE(stream_->Close(kLong));
  daemon.join();
  EXPECT_EQ(downs_, std::vector<wire::Down>{AnswerDown(1)})
      << "answers that arrive during Close must be handed over";
  EXPECT_EQ(broken_.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(stream_->Send(AcquireUp(2))));
}

TEST_F(LocalSessionStreamTest, CloseSendsQueuedMessages) {
  Attach();
  SendMoreThanTheSocketTakes();
  std::thread daemon([&] {
    ReadWhatWasSent();
    EXPECT_TRUE(daemon_->Next().none());
    EXPECT_TRUE(daemon_->SendEnd({}));
  });
  EXPECT_TRUE(stream_->Close(kLong));
  daemon.join();
}

TEST_F(LocalSessionStreamTest, CloseAfterWakeStillReads) {
  Attach();
  stream_->Wake();
  std::thread daemon([&] {
    EXPECT_TRUE(daemon_->Next().none());
    EXPECT_TRUE(daemon_->SendEnd({}));
  });
  EXPECT_TRUE(stream_->Close(kLong));
  daemon.join();
}

TEST_F(LocalSessionStreamTest, CloseWithoutAnEndFails) {
  Attach();
  std::thread daemon([&] {
    EXPECT_TRUE(daemon_->Next().none());
    daemon_->Break();
  });
  EXPECT_FALSE(stream_->Close(kLong));
  daemon.join();
  ASSERT_EQ(broken_.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(broken_[0])) << broken_[0];
}

TEST_F(LocalSessionStreamTest, CloseAfterARefusalFails) {
  Attach();
  ASSERT_TRUE(daemon_->SendEnd({absl::InvalidArgumentError("no")}));
  EXPECT_FALSE(stream_->Close(kLong));
  EXPECT_EQ(broken_, std::vector<absl::Status>{absl::InvalidArgumentError("no")});
}

TEST_F(LocalSessionStreamTest, CloseDoesNotWaitForever) {
  Attach();
  EXPECT_FALSE(stream_->Close(milliseconds(20)));
  EXPECT_EQ(broken_.size(), 1u);
  EXPECT_FALSE(daemon_->SendEnd({})) << "the client must have closed the socket";
}

TEST_F(LocalSessionStreamTest, DestructionClosesTheConnection) {
  Attach();
  stream_.reset();
  EXPECT_TRUE(daemon_->Next().none());
}

TEST_F(LocalSessionStreamTest, DestructionClosesTheConnectionEvenIfAForkedChildHasTheSocket) {
  Attach();
  const FileDescriptor childs(dup(fd_));
  stream_.reset();
  EXPECT_TRUE(daemon_->Next().none());
}

TEST_F(LocalSessionStreamTest, InvalidFramesBreakTheStreamOnce) {
  const auto frame = [](SessionFrameType type, const std::string& body) {
    const auto header = EncodeSessionFrameHeader(type, body.size());
    return std::string(header.data(), header.size()) + body;
  };
  const std::string nonsense[] = {
      frame(SessionFrameType::kMessage, "\xff\xff"),
      frame(SessionFrameType::kEnd, "\xff\xff"),
      frame(SessionFrameType{3}, ""),
      std::string("\xff\xff\xff\xff\x01\x00\x01\x00", 8),
  };
  for (const std::string& bytes : nonsense) {
    SocketPair ends;
    socket_ = std::move(ends.ours);
    daemon_.emplace(std::move(ends.theirs));
    broken_.clear();
    Attach();
    ASSERT_TRUE(
        daemon_->SendBytes(daemon_->Frame(AnswerDown(1)) + bytes + daemon_->Frame(AnswerDown(2))));
    PumpToTheEnd();
    EXPECT_EQ(downs_, std::vector<wire::Down>{AnswerDown(1)});
    stream_->Pump(stream_->arrivals(), TimePoint(), TimePoint::max());  // does not wait any longer
    ASSERT_EQ(broken_.size(), 1u);
    EXPECT_TRUE(absl::IsUnavailable(broken_[0])) << broken_[0];
    EXPECT_TRUE(absl::IsUnavailable(stream_->Send(AcquireUp(1))));
    EXPECT_TRUE(daemon_->Next().none());
    EXPECT_FALSE(stream_->Close(kLong));
    EXPECT_EQ(broken_.size(), 1u);
  }
}

TEST_F(LocalSessionStreamTest, NothingComesAfterTheEnd) {
  Attach();
  std::string bytes = daemon_->Frame(AnswerDown(1));
  SessionCodec::AppendEnd({absl::UnavailableError("stopping")}, &bytes);
  ASSERT_TRUE(daemon_->SendBytes(bytes + daemon_->Frame(AnswerDown(2))));
  PumpToTheEnd();
  PumpAll();
  EXPECT_EQ(downs_, std::vector<wire::Down>{AnswerDown(1)});
  EXPECT_EQ(broken_, std::vector<absl::Status>{absl::UnavailableError("stopping")});
}

TEST_F(LocalSessionStreamTest, CancelEndsAPumpOfAnotherThread) {
  Attach();
  {
    Pumper pumper(*stream_, stream_->arrivals());
    ASSERT_TRUE(pumper.Sleeps());
    stream_->Cancel();
    pumper.Join();
  }
  ASSERT_EQ(broken_.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(broken_[0])) << broken_[0];
  EXPECT_TRUE(daemon_->Next().none()) << "no bye may be sent";
  EXPECT_TRUE(absl::IsUnavailable(stream_->Send(AcquireUp(1))));
}

// ---- All at once, for the thread sanitizer.

TEST_F(LocalSessionStreamTest, ManySendWhileOnePumps) {
  Attach();
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kMessages = 500;
  std::thread daemon([&] {  // answers each message
    std::vector<uint64_t> last(kThreads);
    for (uint64_t i = 0; i < kThreads * kMessages; ++i) {
      const wire::Up up = daemon_->NextMessage();
      ASSERT_EQ(up.acquires.size(), 1u);
      const uint64_t id = up.acquires[0].id;
      EXPECT_EQ(id / kThreads, ++last[id % kThreads]) << "in order for each thread";
      ASSERT_TRUE(daemon_->Send(AnswerDown(id)));
    }
  });
  std::vector<std::thread> senders;
  for (uint64_t t = 0; t < kThreads; ++t) {
    senders.emplace_back([&, t] {
      for (uint64_t i = 1; i <= kMessages; ++i)
        ASSERT_TRUE(stream_->Send(AcquireUp(i * kThreads + t, (i % 5) * 100)).ok());
    });
  }
  while (downs_.size() < kThreads * kMessages && broken_.empty())
    stream_->Pump(stream_->arrivals(), TimePoint(), In(kLong));
  for (std::thread& sender : senders) sender.join();
  daemon.join();
  EXPECT_EQ(downs_.size(), kThreads * kMessages);
}

}  // namespace
}  // namespace larder
