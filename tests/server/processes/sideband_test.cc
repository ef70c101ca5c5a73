// What the sideband does for processes that follow the protocol, and what it does when they die.
// The sockets are real, and so are the processes where a test depends on which process acts.
#include "server/processes/sideband.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>

#include "tests/server/processes/sideband_fixture.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

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
  EXPECT_EQ(counters().requests_failed, 2u);  // the connection survived each failure
}

TEST_F(SidebandTest, DeviceMemoryIsPassedToAnotherProcess) {
  Start();
  const auto owner = Connect();
  auto opener = Connect();
  const FileDescriptor memory = Memfd(8192);
  DeviceExport exported(SharePath::kDescriptor, ByteCount(8192));
  exported.descriptor = fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
  const auto ticket = owner->Share(exported);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  auto opened = opener->OpenShared(*ticket);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->path, SharePath::kDescriptor);
  EXPECT_EQ(opened->bytes, ByteCount(8192));
  ASSERT_EQ(pwrite(memory.get(), "d", 1, 5), 1);
  char byte = 0;
  ASSERT_EQ(pread(opened->descriptor, &byte, 1, 5), 1);
  EXPECT_EQ(byte, 'd');

  DeviceExport by_handle(SharePath::kHandle, MiB(2));
  by_handle.handle[63] = std::byte{0x5A};
  const auto other = owner->Share(by_handle);
  ASSERT_TRUE(other.ok()) << other.status();
  auto handle = opener->OpenShared(*other);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(handle->path, SharePath::kHandle);
  EXPECT_EQ(handle->handle, by_handle.handle);
  EXPECT_TRUE(absl::IsInvalidArgument(owner->Share(DeviceExport()).status()));
  EXPECT_EQ(sideband_->device_shares(), 2u);

  ShareTicket guess = *ticket;
  guess[15] ^= std::byte{1};
  EXPECT_TRUE(absl::IsNotFound(opener->OpenShared(guess).status()));
  EXPECT_TRUE(absl::IsNotFound(owner->DropShare(guess)));
  EXPECT_TRUE(owner->DropShare(*other).ok());
  EXPECT_TRUE(absl::IsNotFound(opener->OpenShared(*other).status()));
  EXPECT_EQ(counters().shared_memory, 1u);
  EXPECT_EQ(counters().shared_handle, 1u);
  EXPECT_EQ(counters().opened_memory, 1u);
  EXPECT_EQ(counters().opened_handle, 1u);
}

TEST_F(SidebandTest, SharedDeviceMemoryEndsWithItsConnection) {
  Start();
  auto owner = Connect();
  const auto opener = Connect();
  const FileDescriptor memory = Memfd(4096);
  DeviceExport exported(SharePath::kDescriptor, ByteCount(4096));
  exported.descriptor = fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
  const auto ticket = owner->Share(exported);
  ASSERT_TRUE(ticket.ok());
  owner.reset();
  EXPECT_TRUE(Eventually([&] { return sideband_->device_shares() == 0; }));
  EXPECT_TRUE(absl::IsNotFound(opener->OpenShared(*ticket).status()));
}

TEST_F(SidebandTest, StagingSegmentsAreMadeAndDropped) {
  Start();
  auto client = Connect();
  const auto made = client->MakeStaging(ByteCount(8192));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->bytes, ByteCount(8192));
  ASSERT_EQ(pwrite(made->descriptor.get(), "s", 1, 0), 1);
  ASSERT_NE(staging_.Get(client->process_id(), made->id), nullptr);
  EXPECT_EQ(staging_.Get(client->process_id(), made->id)->bytes()[0], std::byte{'s'});
  const auto other = Connect();
  EXPECT_TRUE(other->DropStaging(made->id).ok());  // any connection of the process may drop it
  EXPECT_EQ(client->DropStaging(made->id).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client->MakeStaging(ByteCount(4095)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client->MakeStaging(MiB(2)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(counters().staging_refused, 2u);
  ASSERT_TRUE(client->MakeStaging(ByteCount(8192)).ok());
  client.reset();  // its segments end with the connection that made them
  EXPECT_TRUE(Eventually([&] { return staging_.counts().segments == 0; }));
  EXPECT_NE(other->DropStaging(99), absl::OkStatus());
}

// A request of a former version of the client library.
TEST_F(SidebandTest, AClientsOwnStagingMemoryIsRefusedWithAdvice) {
  Start();
  RawClient raw(options_.path);
  ASSERT_TRUE(raw.Welcome());
  const FileDescriptor memfd = Memfd(4096);
  raw.Send(StagingFrame{.bytes = ByteCount(4096)}, {.descriptor = memfd.get()});
  const auto answer = raw.Receive();
  ASSERT_TRUE(answer && TypeOf(*answer) == FrameType::kError);
  const auto& error = std::get<ErrorFrame>(*answer);
  EXPECT_EQ(error.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(error.text.find("update the client library"), std::string::npos) << error.text;
  EXPECT_EQ(staging_.counts().segments, 0u);
  raw.Send(CleanFrame{});  // the connection survives
  EXPECT_TRUE(raw.Receive());
}

// Runs in a child with another uid: the descriptor gives no way to write, by any means.
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

TEST_F(SidebandTest, HandsOutSessionSockets) {
  Start();
  auto client = Connect();
  const auto mine = client->OpenSession();
  ASSERT_TRUE(mine.ok()) << mine.status();
  auto opened = host_.TakeOpened();
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].first, client->token());
  char byte = 0;
  ASSERT_EQ(write(mine->get(), "m", 1), 1);
  EXPECT_EQ(read(opened[0].second.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'm');
  EXPECT_NE(fcntl(mine->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(counters().session_sockets, 1u);
  // The daemon keeps no copy of the client's end.
  client.reset();
  ASSERT_EQ(shutdown(mine->get(), SHUT_RDWR), 0);
  EXPECT_EQ(read(opened[0].second.get(), &byte, 1), 0);
}

TEST_F(SidebandTest, HandsOutNoSessionSocketsWhereTheyAreOff) {
  host_.HandOutNoSessionSockets();
  Start();
  auto client = Connect();
  EXPECT_TRUE(absl::IsUnimplemented(client->OpenSession().status()));
  EXPECT_TRUE(client->MapSessionPage(kSession).ok()) << "the connection survives the refusal";
}

TEST_F(SidebandTest, AnotherUidGetsNoSlabOfAPoolWithMappedWriters) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid";
  options_.mode = 0666;
  ChildProcess child(
      [&](const Line& line) {
        CHILD_CHECK(line.Hear());
        auto client = SidebandClient::Connect(options_.path, kPatience);
        CHILD_CHECK(client.ok());
        for (const bool writable : {false, true}) {
          CHILD_CHECK((*client)->MapSlab(SlabId{0}, writable).status().code() ==
                      absl::StatusCode::kPermissionDenied);
        }
        CHILD_CHECK((*client)->MapSessionPage(kSession).ok());
      },
      kStranger);
  Start();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(counters().slabs_denied, 1u);
  EXPECT_EQ(counters().writes_denied, 1u);
  EXPECT_EQ(counters().slabs_read + counters().slabs_write, 0u);
}

TEST_F(SidebandTest, AnotherUidGetsReadOnlyDescriptorsOfSealedSlabs) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid";
  host_.MakePool(/*sealed=*/true);
  options_.trusted_uids = {};
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

TEST_F(SidebandTest, TheSocketModeKeepsAnotherUidOut) {
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
  EXPECT_EQ(counters().door.accepted, 0u);
}

TEST_F(SidebandTest, WithoutTrustedUidsNoProcessMayMap) {
  options_.trusted_uids = {};
  Start();
  const auto client = Connect();
  EXPECT_FALSE(client->writable());
  EXPECT_FALSE(processes_->Find(client->token())->writable);
  EXPECT_EQ(client->MapSlab(SlabId{0}, true).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(client->MapSlab(SlabId{0}, false).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(SidebandTest, AKilledProcessIsDeadEvenIfAForkKeepsItsSocketOpen) {
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    RawClient raw(options_.path);
    CHILD_CHECK(raw.Welcome());
    raw.Send(MakeStagingFrame{.bytes = ByteCount(4096)});
    const auto answer = raw.Receive();
    CHILD_CHECK(answer && TypeOf(*answer) == FrameType::kStagingMade);
    const pid_t fork_of_it = fork();
    if (fork_of_it == 0) {
      for (;;) pause();  // and keeps the socket open
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
  EXPECT_EQ(kill(static_cast<pid_t>(*grandchild), SIGKILL), 0);  // it was alive all the time
}

TEST_F(SidebandTest, AClosedSocketIsNotADeathAndTheProcessCanCleanUp) {
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
    const auto released = (*second)->Clean(SessionId{1});
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

TEST_F(SidebandTest, AForkCannotAnswerForTheProcessThatConnected) {
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

TEST_F(SidebandTest, RequestsOfAForkOfAWelcomedProcessAreRefused) {
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    RawClient raw(options_.path);
    CHILD_CHECK(raw.Welcome());
    const pid_t fork_of_it = fork();
    if (fork_of_it == 0) {
      raw.Send(OpenSessionFrame{});
      CHILD_CHECK(raw.ErrorCode() == absl::StatusCode::kPermissionDenied);
      raw.Send(MapSlabFrame{.slab = SlabId{0}});
      CHILD_CHECK(raw.ErrorCode() == absl::StatusCode::kPermissionDenied);
      _exit(0);
    }
    int status = 0;
    CHILD_CHECK(waitpid(fork_of_it, &status, 0) == fork_of_it);
    CHILD_CHECK(WEXITSTATUS(status) == 0);
    raw.Send(OpenSessionFrame{});  // the parent is allowed to
    FileDescriptor socket;
    CHILD_CHECK(raw.Receive(&socket) && socket);
  });
  Start();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(counters().wrong_answer, 2u);
  EXPECT_EQ(counters().session_sockets, 1u);
}

TEST_F(SidebandTest, OneDaemonPerPath) {
  Start();
  const auto second = Sideband::Create(options_, host_, *processes_, staging_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Connect(), nullptr);  // the first daemon's file is untouched
}

TEST_F(SidebandTest, TakesOverTheSocketOfAKilledDaemon) {
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
  EXPECT_EQ(none.status().message(),
            "no larderd listens at " + options_.path + ": start it or set LARDER_SOCKET_DIR");
  EXPECT_EQ(SidebandClient::Connect(std::string(200, 'x'), kPatience).status().code(),
            absl::StatusCode::kInvalidArgument);
  // The socket is bound, but no thread serves it.
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
  EXPECT_EQ(client->Clean(SessionId{1}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->MapSlab(SlabId{0}, false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(slab->bytes().size(), MiB(2).value());  // the mapping lives until its owner drops it
}

TEST_F(SidebandTest, AForkedChildHasNeitherMappingNorConnection) {
  ChildProcess child([&](const Line& line) {
    CHILD_CHECK(line.Hear());
    auto client = SidebandClient::Connect(options_.path, kPatience);
    CHILD_CHECK(client.ok());
    auto slab = (*client)->MapSlab(SlabId{0}, false);
    CHILD_CHECK(slab.ok());
    const pid_t fork_of_it = fork();
    if (fork_of_it == 0) {
      CHILD_CHECK((*client)->Clean(SessionId{1}).status().code() ==
                  absl::StatusCode::kFailedPrecondition);
      unsigned char present = 0;
      CHILD_CHECK(mincore(const_cast<std::byte*>(slab->bytes().data()), 4096, &present) != 0 &&
                  errno == ENOMEM);
      _exit(0);
    }
    int status = 0;
    CHILD_CHECK(waitpid(fork_of_it, &status, 0) == fork_of_it && WEXITSTATUS(status) == 0);
    CHILD_CHECK((*client)->Clean(SessionId{1}).ok());
  });
  Start();
  child.line().Tell(1);
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace larder
