// A sideband server over a host with one real slab, a client that follows the protocol, and a raw
// client that may send anything.
//
// Ownership: the fixture owns the server, the host and the folder.
// Thread-safety: none; only the server's thread calls the host, which answers under its own lock.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/local/sideband_client.h"
#include "server/processes/sideband.h"
#include "server/sessions/session_page.h"
#include "storage/memory/slab_pool.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/send_rights.h"
#include "tests/support/temporary_directory.h"

namespace larder {

inline constexpr std::chrono::milliseconds kPatience{30'000};
inline constexpr uid_t kStranger = 65534;
inline constexpr SessionId kSession{11};

inline FileDescriptor Memfd(uint64_t bytes, int seals = F_SEAL_SHRINK | F_SEAL_GROW) {
  FileDescriptor fd(memfd_create("staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// A host with one real slab and one real page that records what was asked.
class FakeHost final : public SidebandHost {
 public:
  FakeHost() {
    MakePool(/*sealed=*/false);
    page_ = *SessionPage::Create();
  }
  void MakePool(bool sealed) {
    auto pool = SlabPool::Create({.bytes = MiB(2),
                                  .slab_bytes = MiB(2),
                                  .name = "test",
                                  .seal_future_write = sealed,
                                  .lock_memory = false,
                                  .huge_pages = false,
                                  .host_memory = [] { return ReadHostMemory(); }});
    EXPECT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    EXPECT_TRUE(pool_->PopulateAll().ok());
  }
  absl::StatusOr<int> OpenSlab(ProcessId, uint32_t slab, bool writable) override {
    return pool_->OpenDescriptor(static_cast<SlabId>(slab), writable);
  }
  absl::StatusOr<std::pair<int, ByteCount>> OpenSessionPage(ProcessId, SessionId session) override {
    if (session != kSession) return absl::NotFoundError("no such session of this process");
    auto fd = page_->OpenDescriptor();
    if (!fd.ok()) return fd.status();
    return std::pair(*fd, SessionPage::kBytes);
  }
  absl::StatusOr<FileDescriptor> OpenSession(const SidebandToken& token) override {
    MutexLock lock(mu_);
    if (!session_sockets_) return absl::UnimplementedError("no session sockets here");
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    opened_.emplace_back(token, FileDescriptor(ends[0]));
    return FileDescriptor(ends[1]);
  }
  ByteCount ReleaseClean(ProcessId process, SessionId) override {
    MutexLock lock(mu_);
    return std::exchange(quarantine_[process], ByteCount(0));
  }
  ByteCount slab_bytes() override { return MiB(2); }
  bool slabs_sealed() override { return pool_->sealed(); }
  std::string boot_id() override { return "01234567-89ab-cdef-0123-456789abcdef"; }

  void SetQuarantine(ProcessId process, ByteCount bytes) {
    MutexLock lock(mu_);
    quarantine_[process] = bytes;
  }
  void HandOutNoSessionSockets() {
    MutexLock lock(mu_);
    session_sockets_ = false;
  }
  // Returns the host's ends of the session sockets that were handed out, with the token of each
  // one's process.
  std::vector<std::pair<SidebandToken, FileDescriptor>> TakeOpened() {
    MutexLock lock(mu_);
    return std::exchange(opened_, {});
  }
  std::span<std::byte> slab() { return pool_->Bytes({.slab = SlabId{0}, .page = 0, .pages = 512}); }
  SessionPage& page() { return *page_; }

 private:
  std::unique_ptr<SlabPool> pool_;
  std::unique_ptr<SessionPage> page_;
  Mutex mu_;
  std::map<ProcessId, ByteCount> quarantine_ LARDER_GUARDED_BY(mu_);
  bool session_sockets_ LARDER_GUARDED_BY(mu_) = true;
  std::vector<std::pair<SidebandToken, FileDescriptor>> opened_ LARDER_GUARDED_BY(mu_);
};

// A client that sends any packets and may break the protocol.
class RawClient {
 public:
  explicit RawClient(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  [[nodiscard]] bool connected() const { return connected_; }
  [[nodiscard]] int socket() const { return socket_.get(); }
  bool SendBytes(std::span<const std::byte> bytes, const SendExtras& extras = {}) const {
    return SendPacket(socket_.get(), bytes, extras) == SendResult::kSent;
  }
  bool Send(const Frame& frame, const SendExtras& extras = {}) const {
    return SendBytes(EncodeFrame(frame).bytes(), extras);
  }
  // Sends several descriptors along with a frame.
  void SendMany(const Frame& frame, const std::vector<int>& fds) const {
    const EncodedFrame packet = EncodeFrame(frame);
    const std::string_view bytes(reinterpret_cast<const char*>(packet.bytes().data()),
                                 packet.bytes().size());
    EXPECT_EQ(SendRights(socket_.get(), bytes, fds), 0);
  }
  // Waits for a frame.  Returns nullopt once the connection is closed.
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
  // Returns the code of the ERROR frame that comes next, or kOk if another frame comes.
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
    chmod(directory_.c_str(), 0755);
    options_.path = directory_ + "/sideband.sock";
    auto table = ProcessTable::Create({});
    EXPECT_TRUE(table.ok());
    processes_ = *std::move(table);
  }
  ~SidebandTest() override {
    processes_->Stop();
    sideband_.reset();
  }
  // REQUIRES: all forks of the test have happened.
  void Start() {
    auto sideband = Sideband::Create(options_, host_, *processes_, staging_);
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    sideband_ = *std::move(sideband);
    sideband_->Start();
    processes_->Start([this](ProcessId process) {
      sideband_->OnProcessDeath(process);
      // From here on, the daemon may free what the process held.
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

  const TemporarySocketDirectory temporary_;
  const std::string directory_ = temporary_.path();
  Sideband::Options options_;
  FakeHost host_;
  StagingTable staging_{{.process_bytes_max = MiB(1), .process_segments_max = 4}};
  std::unique_ptr<ProcessTable> processes_;
  std::unique_ptr<Sideband> sideband_;
  Mutex mu_;
  CondVar died_;
  std::vector<ProcessId> dead_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
