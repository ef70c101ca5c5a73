#include "server/processes/process_table.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "tests/support/child_process.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Collects reported deaths; a test can wait for them.
class Deaths {
 public:
  void Add(ProcessId id) {
    MutexLock lock(mu_);
    ids_.push_back(id);
    cv_.NotifyAll();
  }
  std::vector<ProcessId> Wait(size_t count) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    MutexLock lock(mu_);
    while (ids_.size() < count) cv_.Wait(mu_);
    return ids_;
  }
  std::vector<ProcessId> now() {
    MutexLock lock(mu_);
    return ids_;
  }

 private:
  Mutex mu_;
  CondVar cv_;
  std::vector<ProcessId> ids_;
};

void WaitForEnd(const Line& line) { static_cast<void>(line.Hear()); }

class ProcessTableTest : public testing::Test {
 protected:
  void Make(const ProcessTable::Options& options = {}) {
    auto table = ProcessTable::Create(options);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = *std::move(table);
  }
  void Start() {
    table_->Start([this](ProcessId id) { deaths_.Add(id); });
  }
  static PeerProcess Peer(pid_t pid) { return *PeerProcess::OfPid(pid, 0); }
  ProcessTable::Attachment Attach(pid_t pid, bool writable = false) {
    auto attachment = table_->Attach(Peer(pid), writable);
    EXPECT_TRUE(attachment.ok()) << attachment.status();
    return attachment.ok() ? *attachment : ProcessTable::Attachment{};
  }

  Deaths deaths_;
  std::unique_ptr<ProcessTable> table_;
};

TEST_F(ProcessTableTest, TokenNamesTheProcessWithTheRightsOfItsConnection) {
  Make();
  const auto first = Attach(getpid(), /*writable=*/true);
  const auto second = Attach(getpid(), /*writable=*/false);
  EXPECT_EQ(first.process, second.process);
  EXPECT_NE(first.token, second.token);
  ASSERT_TRUE(table_->Find(first.token));
  EXPECT_EQ(table_->Find(first.token)->id, first.process);
  EXPECT_EQ(table_->Find(first.token)->pid, getpid());
  EXPECT_TRUE(table_->Find(first.token)->writable);
  EXPECT_FALSE(table_->Find(second.token)->writable);
  EXPECT_FALSE(table_->Find(SidebandToken{}));
}

TEST_F(ProcessTableTest, WithoutASessionATokenEndsWithItsConnection) {
  Make();
  const auto kept = Attach(getpid());
  const auto closed = Attach(getpid());
  table_->Detach(closed.token);
  EXPECT_FALSE(table_->Find(closed.token));
  EXPECT_TRUE(table_->Find(kept.token));
  table_->Detach(kept.token);
  EXPECT_EQ(table_->counts().processes, 0u);
  EXPECT_FALSE(table_->AddSession(kept.process));
}

TEST_F(ProcessTableTest, WithASessionATokenOutlivesItsConnection) {
  Make();
  const auto closed = Attach(getpid());
  ASSERT_TRUE(table_->AddSession(closed.process));
  table_->Detach(closed.token);
  EXPECT_TRUE(table_->Find(closed.token));
  const auto open = Attach(getpid());
  table_->RemoveSession(closed.process);
  EXPECT_FALSE(table_->Find(closed.token));
  EXPECT_TRUE(table_->Find(open.token));
}

TEST_F(ProcessTableTest, QuarantineKeepsTheEntryAndItsIdButNoToken) {
  Make();
  const auto before = Attach(getpid());
  ASSERT_TRUE(table_->AddQuarantine(before.process));
  table_->Detach(before.token);
  EXPECT_FALSE(table_->Find(before.token));
  EXPECT_TRUE(table_->Contains(before.process));
  const auto after = Attach(getpid());
  EXPECT_EQ(after.process, before.process);
  table_->RemoveQuarantine(before.process);
  table_->Detach(after.token);
  EXPECT_FALSE(table_->Contains(before.process));
  EXPECT_NE(Attach(getpid()).process, before.process);  // ids are not reused
}

TEST_F(ProcessTableTest, DeathIsReportedOnceAndEndsEverything) {
  ChildProcess child(WaitForEnd);
  Make();
  Start();
  const auto attached = Attach(child.pid());
  ASSERT_TRUE(table_->AddSession(attached.process));
  ASSERT_TRUE(table_->AddQuarantine(attached.process));
  child.Kill();  // the parent has not reaped it yet, but its death is proven all the same
  EXPECT_THAT(deaths_.Wait(1), ElementsAre(attached.process));
  EXPECT_FALSE(table_->Find(attached.token));
  EXPECT_FALSE(table_->AddSession(attached.process));
  EXPECT_FALSE(table_->AddQuarantine(attached.process));
  table_->RemoveSession(attached.process);  // sessions may be removed after the death
  table_->RemoveQuarantine(attached.process);
  table_->Detach(attached.token);
  EXPECT_EQ(table_->counts().processes, 0u);
  table_->Stop();
  EXPECT_EQ(deaths_.now().size(), 1u);
}

TEST_F(ProcessTableTest, DeathBeforeAttachIsReported) {
  ChildProcess child(WaitForEnd);
  Make();
  PeerProcess peer = Peer(child.pid());
  child.Kill();
  child.Wait();
  EXPECT_FALSE(peer.alive());
  auto attached = table_->Attach(std::move(peer), false);
  ASSERT_TRUE(attached.ok());
  Start();
  EXPECT_THAT(deaths_.Wait(1), ElementsAre(attached->process));
}

TEST_F(ProcessTableTest, DeathOfARemovedEntryIsNotReported) {
  ChildProcess gone(WaitForEnd);
  ChildProcess kept(WaitForEnd);
  Make();
  Start();
  table_->Detach(Attach(gone.pid()).token);
  const auto attached = Attach(kept.pid());
  gone.Kill();
  gone.Wait();
  kept.Kill();
  EXPECT_THAT(deaths_.Wait(1), ElementsAre(attached.process));
}

// Forks a child with a chosen pid, as can happen by chance on a busy host.
pid_t ForkWithPid(pid_t pid) {
  clone_args args{};
  args.exit_signal = SIGCHLD;
  args.set_tid = reinterpret_cast<uint64_t>(&pid);
  args.set_tid_size = 1;
  return static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof args));
}

TEST_F(ProcessTableTest, ReusedPidIsAnotherProcessEvenBeforeTheReaperKnows) {
  ChildProcess blocker(WaitForEnd);
  ChildProcess old(WaitForEnd);
  Make();
  const pid_t pid = old.pid();
  const auto first = Attach(blocker.pid());
  const auto before = Attach(pid);
  std::promise<void> entered;
  std::promise<void> release;
  table_->Start([&, future = release.get_future().share()](ProcessId id) {
    if (id == first.process) {
      entered.set_value();
      future.wait();  // the reaper is busy
    }
    deaths_.Add(id);
  });
  blocker.Kill();
  entered.get_future().wait();
  old.Kill();
  old.Wait();
  const pid_t reused = ForkWithPid(pid);
  if (reused == 0) {
    for (;;) pause();
  }
  if (reused < 0) {
    release.set_value();
    table_->Stop();
    GTEST_SKIP() << "needs the right to choose a pid";
  }
  ASSERT_EQ(reused, pid);
  const auto after = Attach(pid);
  EXPECT_NE(after.process, before.process);
  EXPECT_TRUE(table_->Find(before.token));  // the reaper has not reported the death yet
  release.set_value();
  EXPECT_THAT(deaths_.Wait(2), ElementsAre(first.process, before.process));
  EXPECT_FALSE(table_->Find(before.token));
  EXPECT_TRUE(table_->Find(after.token));
  // The end of the old process must not remove the pid of the new one.
  EXPECT_EQ(Attach(pid).process, after.process);
  kill(reused, SIGKILL);
  waitpid(reused, nullptr, 0);
  EXPECT_EQ(deaths_.Wait(3)[2], after.process);
  table_->Stop();
}

TEST_F(ProcessTableTest, Limits) {
  ChildProcess other(WaitForEnd);
  Make({.processes_max = 1, .tokens_per_process_max = 2});
  const auto first = Attach(getpid());
  EXPECT_EQ(table_->Attach(Peer(other.pid()), false).status().code(),
            absl::StatusCode::kResourceExhausted);
  const auto second = Attach(getpid());
  EXPECT_EQ(table_->Attach(Peer(getpid()), false).status().code(),
            absl::StatusCode::kResourceExhausted);
  // A token that only a session keeps alive frees its slot among the tokens of the process.
  ASSERT_TRUE(table_->AddSession(first.process));
  table_->Detach(second.token);
  const auto third = Attach(getpid());
  EXPECT_FALSE(table_->Find(second.token));
  EXPECT_TRUE(table_->Find(first.token));
  EXPECT_TRUE(table_->Find(third.token));
  EXPECT_EQ(ProcessTable::Create({.processes_max = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// One user's forked children, each with one handshake, leave entries for the next user.
TEST_F(ProcessTableTest, AUidHasAShareOfTheEntries) {
  Shares::Sizes sizes;
  sizes.sessions_max = 8;
  Shares shares(Shares::LimitsOf(sizes));
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int i = 0; i < 8; ++i) children.push_back(std::make_unique<ChildProcess>(WaitForEnd));
  Make({.processes_max = 8, .shares = &shares});
  Start();
  const auto attach = [&](size_t child, uid_t uid) {
    return table_->Attach(*PeerProcess::OfPid(children[child]->pid(), uid), false);
  };
  std::vector<ProcessTable::Attachment> attached;
  absl::Status refused;
  for (size_t i = 0; i < 7 && refused.ok(); ++i) {
    const auto attachment = attach(i, 1000);
    refused = attachment.status();
    if (attachment.ok()) attached.push_back(*attachment);
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("share of processes: uid 1000 holds 6"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--sessions-max"));
  EXPECT_TRUE(attach(0, 1000).ok())
      << "a process that is already in the table takes no further entry";
  EXPECT_TRUE(attach(7, 2000).ok()) << "another user still gets an entry";
  // Quarantine keeps the entry after the connection has ended, and the death of the process frees
  // it.
  ASSERT_TRUE(table_->AddQuarantine(attached[1].process));
  table_->Detach(attached[1].token);
  EXPECT_EQ(shares.held(ShareKind::kProcesses), 7u);
  children[1]->Kill();
  EXPECT_THAT(deaths_.Wait(1), ElementsAre(attached[1].process));
  EXPECT_EQ(shares.held(ShareKind::kProcesses), 6u);
  table_->Detach(attached[2].token);
  EXPECT_EQ(shares.held(ShareKind::kProcesses), 5u);
  table_.reset();
  EXPECT_EQ(shares.held(ShareKind::kProcesses), 0u);
}

TEST_F(ProcessTableTest, NoDescriptorLeaks) {
  ChildProcess child(WaitForEnd);
  Make();
  Start();
  ASSERT_TRUE(Attach(child.pid()).process);
  const int highest = fcntl(0, F_DUPFD_CLOEXEC, 3);
  close(highest);
  child.Kill();
  static_cast<void>(deaths_.Wait(1));
  const int after = fcntl(0, F_DUPFD_CLOEXEC, 3);
  close(after);
  EXPECT_LT(after, highest);  // the pidfd was closed, so its number is free again
}

TEST(PeerProcessTest, OfSocketNamesTheProcessThatConnected) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  auto peer = PeerProcess::OfSocket(ends[0]);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid(), getpid());
  EXPECT_EQ(peer->uid(), geteuid());
  EXPECT_TRUE(peer->alive());
  EXPECT_TRUE(fcntl(peer->pidfd(), F_GETFD) & FD_CLOEXEC);
  close(ends[0]);
  close(ends[1]);
}

TEST(PeerProcessTest, ProcessOfAnotherPidNamespaceIsRefusedWithAdvice) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);  // by this process, outside
  ChildProcess daemon([&](const Line&) {
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    const pid_t inside = fork();
    if (inside == 0) {
      const auto peer = PeerProcess::OfSocket(ends[0]);
      CHILD_CHECK(peer.status().code() == absl::StatusCode::kFailedPrecondition);
      CHILD_CHECK(peer.status().message().find("PID namespace") != std::string_view::npos);
      _exit(0);
    }
    int status = 0;
    CHILD_CHECK(waitpid(inside, &status, 0) == inside);
    _exit(WEXITSTATUS(status));
  });
  const int code = daemon.Wait();
  if (code == 77) GTEST_SKIP() << "needs the right to make a PID namespace";
  EXPECT_EQ(code, 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace larder
