// Real sockets, and real processes where it matters which process it is.
#include "server/sideband.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "client/sideband.h"
#include "server/session_page.h"
#include "storage/slab_pool.h"
#include "tests/server/child_process.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{30'000};
constexpr uid_t kStranger = 65534;
constexpr SessionId kSession{11};

FileDescriptor Memfd(uint64_t bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW) {
  FileDescriptor fd(memfd_create("staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// One real slab, one real page, and a memory of what was asked.
class FakeHost final : public SidebandHost {
 public:
  FakeHost() {
    auto pool = SlabPool::Create({.bytes = MiB(2),
                                  .slab_bytes = MiB(2),
                                  .name = "test",
                                  .seal_future_write = false,
                                  .lock_memory = false,
                                  .huge_pages = false,
                                  .host_memory = [] { return ReadHostMemory(); }});
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    EXPECT_TRUE(pool_->PopulateAll().ok());
    page_ = *SessionPage::Create();
  }
  absl::StatusOr<int> OpenSlab(ProcessId, uint32_t slab, bool writable) override {
    return pool_->OpenDescriptor(static_cast<SlabId>(slab), writable);
  }
  absl::StatusOr<std::pair<int, ByteCount>> OpenSessionPage(ProcessId,
                                                            SessionId session) override {
    if (session != kSession) return absl::NotFoundError("no such session of this process");
    auto fd = page_->OpenDescriptor();
    if (!fd.ok()) return fd.status();
    return std::pair(*fd, SessionPage::kBytes);
  }
  ByteCount ReleaseClean(ProcessId process) override {
    MutexLock lock(mu_);
    return std::exchange(quarantine_[process], ByteCount(0));
  }
  ByteCount slab_bytes() override { return MiB(2); }
  std::string boot_id() override { return "01234567-89ab-cdef-0123-456789abcdef"; }

  void SetQuarantine(ProcessId process, ByteCount bytes) {
    MutexLock lock(mu_);
    quarantine_[process] = bytes;
  }
  std::span<std::byte> slab() { return pool_->Bytes({.slab = SlabId{0}, .page = 0, .pages = 512}); }
  SessionPage& page() { return *page_; }

 private:
  std::unique_ptr<SlabPool> pool_;
  std::unique_ptr<SessionPage> page_;
  Mutex mu_;
  std::map<ProcessId, ByteCount> quarantine_ LARDER_GUARDED_BY(mu_);
};

// A client that speaks packets and breaks rules.
class RawClient {
 public:
  explicit RawClient(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    connected_ =
        connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  [[nodiscard]] bool connected() const { return connected_; }
  [[nodiscard]] int socket() const { return socket_.get(); }
  bool SendBytes(std::span<const std::byte> bytes, const SendExtras& extras = {}) const {
    return SendPacket(socket_.get(), bytes, extras) == SendResult::kSent;
  }
  bool Send(const Frame& frame, const SendExtras& extras = {}) const {
    return SendBytes(EncodeFrame(frame).bytes(), extras);
  }
  // Several descriptors beside a frame.
  void SendMany(const Frame& frame, const std::vector<int>& fds) const {
    const EncodedFrame packet = EncodeFrame(frame);
    iovec part{const_cast<std::byte*>(packet.bytes().data()), packet.bytes().size()};
    std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
    EXPECT_GE(sendmsg(socket_.get(), &message, MSG_NOSIGNAL), 0);
  }
  // Waits.  Nothing once closed.
  std::optional<Frame> Receive(FileDescriptor* fd = nullptr) const {
    ReceivedPacket packet;
    for (;;) {
      const ReceiveResult result = ReceivePacket(socket_.get(), packet);
      if (result == ReceiveResult::kClosed) return std::nullopt;
      if (result == ReceiveResult::kPacket) break;
      pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      poll(&ready, 1, -1);
    }
    if (fd != nullptr && !packet.descriptors.empty()) *fd = std::move(packet.descriptors[0]);
    auto frame = DecodeFrame(packet.bytes());
    if (!frame.ok()) return std::nullopt;
    return *std::move(frame);
  }
  bool Welcome() const {
    Send(HelloFrame{});
    const auto challenge = Receive();
    if (!challenge || TypeOf(*challenge) != FrameType::kChallenge) return false;
    Send(ChallengeReplyFrame{.nonce = std::get<ChallengeFrame>(*challenge).nonce},
         {.descriptor = -1, .credentials = true});
    const auto welcome = Receive();
    return welcome && TypeOf(*welcome) == FrameType::kWelcome;
  }
  // The code of an ERROR that comes next; kOk for anything else.
  absl::StatusCode ErrorCode() const {
    const auto frame = Receive();
    if (!frame || TypeOf(*frame) != FrameType::kError) return absl::StatusCode::kOk;
    return std::get<ErrorFrame>(*frame).code;
  }
  bool Closed() const { return !Receive(); }

 private:
  FileDescriptor socket_;
  bool connected_ = false;
};

class SidebandTest : public testing::Test {
 protected:
  SidebandTest() {
    std::string directory = testing::TempDir() + "sidebandXXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    chmod(directory.c_str(), 0755);
    directory_ = directory;
    options_.path = directory_ + "/sideband.sock";
    auto table = ProcessTable::Create({});
    EXPECT_TRUE(table.ok());
    processes_ = *std::move(table);
  }
  ~SidebandTest() override {
    processes_->Stop();
    sideband_.reset();
    std::filesystem::remove_all(directory_);
  }
  // After all forks.
  void Start() {
    auto sideband = Sideband::Create(options_, host_, *processes_, staging_);
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    sideband_ = *std::move(sideband);
    sideband_->Start();
    processes_->Start([this](ProcessId process) {
      sideband_->OnProcessDeath(process);
      // What the daemon may free from here on.
      EXPECT_FALSE(processes_->Contains(process));
      EXPECT_EQ(staging_.Get(process, 1), nullptr);
      MutexLock lock(mu_);
      dead_.push_back(process);
      died_.NotifyAll();
    });
  }
  ProcessId WaitForDeath() LARDER_NO_THREAD_SAFETY_ANALYSIS {
    MutexLock lock(mu_);
    while (dead_.empty()) died_.Wait(mu_);
    return dead_.front();
  }
  std::unique_ptr<SidebandClient> Connect() const {
    auto client = SidebandClient::Connect(options_.path, kPatience);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  const SidebandCounters& counters() const { return sideband_->counters(); }
  bool NoneOpen() const {
    return Eventually([&] { return counters().connections_open == 0; });
  }
  static size_t OpenDescriptors() {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      ++count;
    }
    return count;
  }

  std::string directory_;
  Sideband::Options options_;
  FakeHost host_;
  StagingTable staging_{{.process_bytes_max = MiB(1), .process_segments_max = 4}};
  std::unique_ptr<ProcessTable> processes_;
  std::unique_ptr<Sideband> sideband_;
  Mutex mu_;
  CondVar died_;
  std::vector<ProcessId> dead_ LARDER_GUARDED_BY(mu_);
};

TEST_F(SidebandTest, WelcomesAndMaps) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const auto attached = processes_->Find(client->token());
  ASSERT_TRUE(attached);
  EXPECT_EQ(attached->id, client->process_id());
  EXPECT_EQ(attached->pid, getpid());
  EXPECT_EQ(attached->uid, geteuid());
  EXPECT_TRUE(attached->writable && client->writable());
  EXPECT_EQ(client->slab_bytes(), MiB(2));
  EXPECT_EQ(client->boot_id(), host_.boot_id());
  EXPECT_EQ(client->TokenHex().size(), 2 * kTokenBytes);

  auto writer = client->MapSlab(SlabId{0}, true);
  auto reader = client->MapSlab(SlabId{0}, false);
  ASSERT_TRUE(writer.ok() && reader.ok()) << writer.status() << reader.status();
  writer->writable_bytes()[4096] = std::byte{42};
  EXPECT_EQ(reader->bytes()[4096], std::byte{42});
  EXPECT_EQ(host_.slab()[4096], std::byte{42});
  EXPECT_TRUE(reader->writable_bytes().empty());
  EXPECT_EQ(client->MapSlab(SlabId{7}, false).status().code(), absl::StatusCode::kNotFound);

  const uint32_t word = *host_.page().AllocateWord(5);
  auto page = client->MapSessionPage(kSession);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_TRUE(page->Holds(word, 5));
  host_.page().Clear(word, 5);
  EXPECT_FALSE(page->Holds(word, 5));
  EXPECT_EQ(client->MapSessionPage(SessionId{12}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(counters().slabs_read, 1u);
  EXPECT_EQ(counters().slabs_write, 1u);
  EXPECT_EQ(counters().requests_failed, 2u);  // and it went on after each
}

TEST_F(SidebandTest, StagingComesAndGoes) {
  Start();
  auto client = Connect();
  const FileDescriptor memfd = Memfd(8192);
  const auto id = client->SendStaging(memfd.get(), ByteCount(8192));
  ASSERT_TRUE(id.ok()) << id.status();
  ASSERT_EQ(pwrite(memfd.get(), "s", 1, 0), 1);
  ASSERT_NE(staging_.Get(client->process_id(), *id), nullptr);
  EXPECT_EQ(staging_.Get(client->process_id(), *id)->bytes()[0], std::byte{'s'});
  const auto other = Connect();
  EXPECT_TRUE(other->DropStaging(*id).ok());  // of this process, whichever connection
  EXPECT_EQ(client->DropStaging(*id).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client->SendStaging(memfd.get(), ByteCount(4096)).status().code(),
            absl::StatusCode::kInvalidArgument);
  const FileDescriptor unsealed = Memfd(4096, 0);
  EXPECT_EQ(client->SendStaging(unsealed.get(), ByteCount(4096)).status().code(),
            absl::StatusCode::kInvalidArgument);
  const FileDescriptor large = Memfd(MiB(2).value());
  EXPECT_EQ(client->SendStaging(large.get(), MiB(2)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(counters().staging_refused, 3u);
  ASSERT_TRUE(client->SendStaging(memfd.get(), ByteCount(8192)).ok());
  client.reset();  // its segments go with the connection that brought them
  EXPECT_TRUE(Eventually([&] { return staging_.counts().segments == 0; }));
  EXPECT_NE(other->DropStaging(99), absl::OkStatus());
}

// In a child of another uid: the descriptor is no way to write, by any road.
void TryToWrite(int slab) {
  const std::string path = "/proc/self/fd/" + std::to_string(slab);
  CHILD_CHECK((fcntl(slab, F_GETFL) & O_ACCMODE) == O_RDONLY);
  CHILD_CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, slab, 0) == MAP_FAILED);
  void* base = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, slab, 0);
  CHILD_CHECK(base != MAP_FAILED);
  CHILD_CHECK(mprotect(base, 4096, PROT_READ | PROT_WRITE) != 0);
  CHILD_CHECK(open(path.c_str(), O_RDWR) < 0 && errno == EACCES);
  CHILD_CHECK(open(path.c_str(), O_WRONLY | O_TRUNC) < 0);
  CHILD_CHECK(pwrite(slab, "x", 1, 0) < 0);
  CHILD_CHECK(ftruncate(slab, 0) != 0);
  CHILD_CHECK(fchmod(slab, 0666) != 0);
  CHILD_CHECK(fallocate(slab, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
}

TEST_F(SidebandTest, StrangerGetsReadOnlyDescriptors) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid";
  options_.mode = 0666;
  ChildProcess child(
      [&](const Line& line) {
        CHILD_CHECK(line.Hear());
        auto client = SidebandClient::Connect(options_.path, kPatience);
        CHILD_CHECK(client.ok());
        CHILD_CHECK(!(*client)->writable());
        CHILD_CHECK((*client)->MapSlab(SlabId{0}, true).status().code() ==
                    absl::StatusCode::kPermissionDenied);
        CHILD_CHECK((*client)->MapSlab(SlabId{0}, false).ok());
        RawClient raw(options_.path);
        CHILD_CHECK(raw.Welcome());
        FileDescriptor slab;
        raw.Send(MapSlabFrame{.slab = SlabId{0}, .writable = false});
        CHILD_CHECK(raw.Receive(&slab) && slab);
        TryToWrite(slab.get());
        FileDescriptor page;
        raw.Send(MapSessionPageFrame{.session = kSession});
        CHILD_CHECK(raw.Receive(&page) && page);
        TryToWrite(page.get());
      },
      kStranger);
  Start();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(counters().writes_denied, 1u);
  EXPECT_EQ(counters().slabs_write, 0u);
}

TEST_F(SidebandTest, SocketModeKeepsAStrangerOut) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid";
  ChildProcess child(
      [&](const Line& line) {
        CHILD_CHECK(line.Hear());
        CHILD_CHECK(SidebandClient::Connect(options_.path, kPatience).status().code() ==
                    absl::StatusCode::kPermissionDenied);
      },
      kStranger);
  Start();
  struct stat file {};
  ASSERT_EQ(stat(options_.path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0660u);
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(counters().accepted, 0u);
}

TEST_F(SidebandTest, NobodyTrustedMeansNobody) {
  options_.trusted_uids = {};
  Start();
  const auto client = Connect();
  EXPECT_FALSE(client->writable());
  EXPECT_FALSE(processes_->Find(client->token())->writable);
  EXPECT_EQ(client->MapSlab(SlabId{0}, true).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST_F(SidebandTest, KilledProcessIsDeadThoughAForkKeepsItsSocketOpen) {
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    RawClient raw(options_.path);
    CHILD_CHECK(raw.Welcome());
    const FileDescriptor memfd = Memfd(4096);
    raw.Send(StagingFrame{.bytes = ByteCount(4096)}, {.descriptor = memfd.get()});
    const auto answer = raw.Receive();
    CHILD_CHECK(answer && TypeOf(*answer) == FrameType::kStagingOk);
    const pid_t fork_of_it = fork();
    if (fork_of_it == 0) {
      for (;;) pause();  // with the socket
    }
    line.Tell(static_cast<uint64_t>(fork_of_it));
    static_cast<void>(line.Hear());
  });
  Start();
  child.line().Tell(1);
  const auto grandchild = child.line().Hear();
  ASSERT_TRUE(grandchild);
  EXPECT_EQ(processes_->counts().processes, 1u);
  EXPECT_EQ(staging_.counts().segments, 1u);
  child.Kill();
  EXPECT_EQ(WaitForDeath(), ProcessId{1});
  EXPECT_EQ(staging_.counts().segments, 0u);
  EXPECT_TRUE(NoneOpen());
  EXPECT_EQ(kill(static_cast<pid_t>(*grandchild), SIGKILL), 0);  // it was there all the while
}

TEST_F(SidebandTest, ClosedSocketIsNoDeathAndTheSameProcessCleansUp) {
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    auto first = SidebandClient::Connect(options_.path, kPatience);
    CHILD_CHECK(first.ok());
    const SidebandToken old_token = (*first)->token();
    line.Tell((*first)->process_id().value);
    CHILD_CHECK(line.Hear());
    first->reset();
    CHILD_CHECK(line.Hear());
    auto second = SidebandClient::Connect(options_.path, kPatience);
    CHILD_CHECK(second.ok());
    CHILD_CHECK((*second)->token() != old_token);
    line.Tell((*second)->process_id().value);
    const auto released = (*second)->Clean();
    CHILD_CHECK(released.ok());
    line.Tell(released->value());
    static_cast<void>(line.Hear());
  });
  Start();
  child.line().Tell(1);
  const ProcessId process{child.line().Hear().value_or(0)};
  ASSERT_TRUE(processes_->AddQuarantine(process));
  host_.SetQuarantine(process, ByteCount(12345));
  child.line().Tell(2);
  EXPECT_TRUE(NoneOpen());
  EXPECT_TRUE(processes_->Contains(process));
  child.line().Tell(3);
  EXPECT_EQ(child.line().Hear(), process.value);
  EXPECT_EQ(child.line().Hear(), 12345u);
  MutexLock lock(mu_);
  EXPECT_TRUE(dead_.empty());
}

TEST_F(SidebandTest, ForkCannotAnswerForTheProcessThatConnected) {
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    RawClient raw(options_.path);
    raw.Send(HelloFrame{});
    const auto challenge = raw.Receive();
    CHILD_CHECK(challenge);
    const pid_t fork_of_it = fork();
    if (fork_of_it == 0) {
      raw.Send(ChallengeReplyFrame{.nonce = std::get<ChallengeFrame>(*challenge).nonce},
               {.descriptor = -1, .credentials = true});
      CHILD_CHECK(raw.ErrorCode() == absl::StatusCode::kUnauthenticated);
      CHILD_CHECK(raw.Closed());
      _exit(0);
    }
    int status = 0;
    CHILD_CHECK(waitpid(fork_of_it, &status, 0) == fork_of_it);
    _exit(WEXITSTATUS(status));
  });
  Start();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(counters().wrong_answer, 1u);
  EXPECT_EQ(counters().welcomed, 0u);
  EXPECT_EQ(processes_->counts().processes, 0u);
}

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
  const Frame all[] = {HelloFrame{},        ChallengeFrame{},      ChallengeReplyFrame{},
                       WelcomeFrame{}, MapSlabFrame{}, MapSessionPageFrame{},
                       StagingOkFrame{},    CleanFrame{},          CleanOkFrame{},
                       DropStagingFrame{},  DropStagingOkFrame{},
                       ErrorFrame{.code = absl::StatusCode::kInternal, .text = "x"}};
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
                         type == FrameType::kClean || type == FrameType::kDropStaging;
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

TEST_F(SidebandTest, PacketsThatAreNoFrames) {
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

TEST_F(SidebandTest, GarbageNeverStopsIt) {
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
      if (i % 4 < 2 && bytes.size() >= kFrameHeaderBytes) {  // a header that is right
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
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_NE(Connect(), nullptr);
}

TEST_F(SidebandTest, DescriptorsNotAskedForAreClosed) {
  Start();
  const FileDescriptor memfd = Memfd(4096);
  const int fd = memfd.get();
  // Once before counting, so that what opens lazily is open.
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
  EXPECT_EQ(OpenDescriptors(), before + 1);  // `none` is ours
  EXPECT_EQ(staging_.counts().segments, 0u);
}

TEST_F(SidebandTest, ConnectionLimits) {
  options_.connections_max = 3;
  options_.connections_per_uid_max = 2;
  Start();
  auto one = Connect();
  const RawClient two(options_.path);  // counts from the first moment
  const auto refused = SidebandClient::Connect(options_.path, kPatience);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  one.reset();
  EXPECT_TRUE(Eventually([&] { return counters().connections_open == 1; }));
  EXPECT_NE(Connect(), nullptr);
  EXPECT_EQ(counters().over_limit, 1u);
}

TEST_F(SidebandTest, LimitOfAllHoldsForStrangersToo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid";
  options_.connections_max = 1;
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
  options_.handshake_deadline = milliseconds(20);
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

TEST_F(SidebandTest, WhoDoesNotReadIsClosed) {
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
    // Fewer descriptors under way than would hurt the daemon's allowance.
    EXPECT_LT(counters().slabs_read, 64u);
  }
  EXPECT_TRUE(NoneOpen());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(SidebandTest, ServesAgainAfterRunningOutOfDescriptors) {
  ChildProcess child([&](const Line& line) {
    while (line.Hear()) {
      line.Tell(SidebandClient::Connect(options_.path, kPatience).ok() ? 1 : 0);
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
  EXPECT_EQ(child.line().Hear(), 0u);
  hog.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  child.line().Tell(1);
  EXPECT_EQ(child.line().Hear(), 1u);
  EXPECT_GE(counters().over_limit, 1u);
}

TEST_F(SidebandTest, OneDaemonPerPath) {
  Start();
  const auto second = Sideband::Create(options_, host_, *processes_, staging_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Connect(), nullptr);  // the first one's file is untouched
}

TEST_F(SidebandTest, TakesOverWhatAKilledDaemonLeft) {
  ChildProcess killed([&](const Line& line) {
    auto sideband = Sideband::Create(options_, host_, *processes_, staging_);
    CHILD_CHECK(sideband.ok());
    line.Tell(1);
    static_cast<void>(line.Hear());
  });
  ASSERT_TRUE(killed.line().Hear());
  killed.Kill();
  killed.Wait();
  ASSERT_TRUE(std::filesystem::exists(options_.path));
  Start();
  EXPECT_NE(Connect(), nullptr);
  processes_->Stop();
  sideband_.reset();
  EXPECT_FALSE(std::filesystem::exists(options_.path));
}

TEST_F(SidebandTest, LeavesForeignFilesAlone) {
  std::ofstream(options_.path) << "precious";
  EXPECT_EQ(Sideband::Create(options_, host_, *processes_, staging_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(options_.path);
  Start();
  std::filesystem::remove(options_.path);
  std::ofstream(options_.path) << "precious";
  processes_->Stop();
  sideband_.reset();
  EXPECT_TRUE(std::filesystem::exists(options_.path));
  options_.path = std::string(200, 'x');
  EXPECT_EQ(options_.Validate().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SidebandTest, ClientSaysWhatIsWrong) {
  const auto none = SidebandClient::Connect(options_.path, kPatience);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(none.status().message(), "no larderd listens at " + options_.path +
                                         ": start it or set LARDER_SOCKET_DIR");
  EXPECT_EQ(SidebandClient::Connect(std::string(200, 'x'), kPatience).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Bound, but nobody serves.
  auto silent = Sideband::Create(options_, host_, *processes_, staging_);
  ASSERT_TRUE(silent.ok());
  EXPECT_EQ(SidebandClient::Connect(options_.path, milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SidebandTest, ClientIsUnavailableOnceTheDaemonIsGone) {
  Start();
  const auto client = Connect();
  auto slab = client->MapSlab(SlabId{0}, false);
  ASSERT_TRUE(slab.ok());
  processes_->Stop();
  sideband_.reset();
  EXPECT_EQ(client->Clean().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->MapSlab(SlabId{0}, false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(slab->bytes().size(), MiB(2).value());  // until its owner lets go
}

TEST_F(SidebandTest, ForkedChildHasNeitherMappingNorConnection) {
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    auto client = SidebandClient::Connect(options_.path, kPatience);
    CHILD_CHECK(client.ok());
    auto slab = (*client)->MapSlab(SlabId{0}, false);
    CHILD_CHECK(slab.ok());
    const pid_t fork_of_it = fork();
    if (fork_of_it == 0) {
      CHILD_CHECK((*client)->Clean().status().code() == absl::StatusCode::kFailedPrecondition);
      unsigned char present = 0;
      CHILD_CHECK(mincore(const_cast<std::byte*>(slab->bytes().data()), 4096, &present) != 0 &&
                  errno == ENOMEM);
      _exit(0);
    }
    int status = 0;
    CHILD_CHECK(waitpid(fork_of_it, &status, 0) == fork_of_it && WEXITSTATUS(status) == 0);
    CHILD_CHECK((*client)->Clean().ok());
  });
  Start();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace larder
