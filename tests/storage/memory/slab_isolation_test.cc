// What another uid can do with the descriptor of a slab.  A forked child becomes another user,
// keeps the one descriptor that it was given, and tries every way to the slab's bytes that we know
// of.
//
// The same list of attempts runs with a reader's descriptor, where each attempt must be refused,
// and with a writer's, where those that a writer may do must succeed, so the list can distinguish
// the two.  Needs root, to become another uid; skipped otherwise.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/memory/slab_pool.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uid_t kNobody = 65534;
constexpr size_t kBytes = 4096;
constexpr std::byte kOurs{0x5a};

int Outcome(bool succeeded) { return succeeded ? 0 : errno; }

// What the child is given and knows.  It may guess the rest.
struct Target {
  int fd = -1;         // its descriptor
  int daemon_fd = -1;  // the number of the daemon's own descriptor, in the daemon
  pid_t daemon = -1;
  void* daemon_map = nullptr;  // where the daemon maps the slab
};

int OpenForWriting(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  const int outcome = Outcome(fd >= 0);
  if (fd >= 0) close(fd);
  return outcome;
}

int Map(int fd, int protection) {
  void* map = mmap(nullptr, kBytes, protection, MAP_SHARED, fd, 0);
  return Outcome(map != MAP_FAILED);
}

// Attempts through a shared read-only mapping.
std::map<std::string, int> TryMapping(const Target& target) {
  std::map<std::string, int> outcomes;
  void* map = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, target.fd, 0);
  outcomes["mmap read"] = Outcome(map != MAP_FAILED);
  if (map == MAP_FAILED) return outcomes;
  const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  outcomes["open own memory"] = Outcome(memory >= 0);
  // Debuggers write to read-only memory in this way.  In a private mapping it would make a copy.
  outcomes["write through /proc/self/mem"] =
      Outcome(pwrite(memory, "x", 1, reinterpret_cast<off_t>(map)) == 1);
  outcomes["madvise remove"] = Outcome(madvise(map, kBytes, MADV_REMOVE) == 0);
  outcomes["mprotect write"] = Outcome(mprotect(map, kBytes, PROT_READ | PROT_WRITE) == 0);
  return outcomes;
}

std::map<std::string, int> TryDescriptor(const Target& target) {
  const int fd = target.fd;
  std::map<std::string, int> outcomes = TryMapping(target);
  const std::string own = "/proc/self/fd/" + std::to_string(fd);
  std::vector<char> link(kBytes);
  outcomes["mmap write"] = Map(fd, PROT_READ | PROT_WRITE);
  outcomes["mmap only write"] = Map(fd, PROT_WRITE);
  // Proves that the following attempts are refused because of the slab's mode, not because /proc is
  // hidden.
  outcomes["see own descriptor"] = Outcome(readlink(own.c_str(), link.data(), link.size()) > 0);
  outcomes["reopen for writing"] = OpenForWriting(own);
  outcomes["chmod by path"] = Outcome(chmod(own.c_str(), 0666) == 0);
  outcomes["truncate by path"] = Outcome(truncate(own.c_str(), 0) == 0);
  outcomes["fchmod"] = Outcome(fchmod(fd, 0666) == 0);
  outcomes["fchown"] = Outcome(fchown(fd, kNobody, kNobody) == 0);
  outcomes["shrink"] = Outcome(ftruncate(fd, 0) == 0);
  outcomes["grow"] = Outcome(ftruncate(fd, 1 << 30) == 0);
  outcomes["write"] = Outcome(pwrite(fd, "x", 1, 0) == 1);
  outcomes["punch a hole"] =
      Outcome(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes) == 0);
  outcomes["add a seal"] = Outcome(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
  // Linux ignores the access mode here and does not report an error.
  (void)fcntl(fd, F_SETFL, O_RDWR);
  outcomes["write after F_SETFL"] = Outcome(pwrite(fd, "x", 1, 0) == 1);
  return outcomes;
}

// Attempts on the daemon that do not go through the descriptor.
std::map<std::string, int> TryDaemon(const Target& target) {
  std::map<std::string, int> outcomes;
  const std::string daemon = "/proc/" + std::to_string(target.daemon);
  outcomes["daemon's descriptor"] =
      OpenForWriting(daemon + "/fd/" + std::to_string(target.daemon_fd));
  outcomes["daemon's memory file"] = OpenForWriting(daemon + "/mem");
  char byte = 'x';
  const iovec from = {.iov_base = &byte, .iov_len = 1};
  const iovec to = {.iov_base = target.daemon_map, .iov_len = 1};
  outcomes["daemon's memory"] = Outcome(process_vm_writev(target.daemon, &from, 1, &to, 1, 0) == 1);
  // MADV_DONTFORK: a forked child of the daemon has no mapping of the slab.
  unsigned char resident = 0;
  outcomes["inherited mapping"] = Outcome(mincore(target.daemon_map, kBytes, &resident) == 0);
  return outcomes;
}

// A private mapping may be written, because it is a copy.  The caller checks that the slab did not
// change.
void WritePrivately(int fd) {
  void* map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  if (map != MAP_FAILED) *static_cast<volatile char*>(map) = 'x';
}

// Returns 0, or an exit code that says which step failed.
int BecomeNobody() {
  if (setgroups(0, nullptr) != 0) return 10;
  if (setresgid(kNobody, kNobody, kNobody) != 0) return 11;
  if (setresuid(kNobody, kNobody, kNobody) != 0) return 12;
  if (setuid(0) == 0) return 13;
  // A change of uid hides /proc/self, but a process of another uid that is started normally sees
  // its own.
  if (prctl(PR_SET_DUMPABLE, 1) != 0) return 14;
  return 0;
}

[[noreturn]] void Child(const Target& target, int report) {
  // Close the descriptors that a process of another uid would not have, the daemon's among them.
  const auto [low, high] = std::minmax(target.fd, report);
  for (const auto& [first, last] : {std::pair{3, low - 1}, {low + 1, high - 1}, {high + 1, ~0}}) {
    if (static_cast<unsigned>(first) > static_cast<unsigned>(last)) continue;
    if (close_range(static_cast<unsigned>(first), static_cast<unsigned>(last), 0) != 0) _exit(9);
  }
  if (const int failed = BecomeNobody(); failed != 0) _exit(failed);
  WritePrivately(target.fd);
  std::map<std::string, int> outcomes = TryDescriptor(target);
  outcomes.merge(TryDaemon(target));
  for (const auto& [name, outcome] : outcomes) {
    dprintf(report, "%d %s\n", outcome, name.c_str());
  }
  _exit(0);
}

// Returns the outcome of each attempt, 0 for success, in a child that has only `fd`.
std::map<std::string, int> OutcomesOfNobody(const Target& target) {
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return {};
  const pid_t child = fork();
  if (child == 0) Child(target, report[1]);
  close(report[1]);
  std::map<std::string, int> outcomes;
  FILE* lines = fdopen(report[0], "r");
  int outcome = 0;
  char name[64];
  while (std::fscanf(lines, "%d %63[^\n]", &outcome, name) == 2) outcomes[name] = outcome;
  std::fclose(lines);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child's wait status " << status;
  return outcomes;
}

std::vector<std::string> Succeeded(const std::map<std::string, int>& outcomes) {
  std::vector<std::string> names;
  for (const auto& [name, outcome] : outcomes) {
    if (outcome == 0) names.push_back(name);
  }
  return names;
}

class SlabIsolationTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another uid";
  }

  void MakePool(bool seal_future_write) {
    const int next_fd = dup(0);  // the first slab gets the lowest free number
    close(next_fd);
    auto pool = SlabPool::Create({.bytes = MiB(2),
                                  .slab_bytes = MiB(2),
                                  .name = "slab_isolation_test",
                                  .seal_future_write = seal_future_write,
                                  .huge_pages = false});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    ASSERT_TRUE(pool_->PopulateAll().ok());
    std::ranges::fill(Bytes(), kOurs);
    target_ = {.daemon_fd = next_fd, .daemon = getpid(), .daemon_map = Bytes().data()};
    ASSERT_GE(fcntl(next_fd, F_GET_SEALS), F_SEAL_SEAL) << "not the slab's descriptor";
  }
  std::span<std::byte> Bytes() {
    return pool_->Bytes({.slab = SlabId{0}, .page = 0, .pages = 512});
  }
  std::map<std::string, int> Try(bool writable) {
    const auto fd = pool_->OpenDescriptor(SlabId{0}, writable);
    EXPECT_TRUE(fd.ok()) << fd.status();
    target_.fd = fd.value_or(-1);
    const auto outcomes = OutcomesOfNobody(target_);
    close(target_.fd);
    return outcomes;
  }

  std::unique_ptr<SlabPool> pool_;
  Target target_;
};

// The reader can read and can see its own process, and nothing else, whether the slab is sealed or
// not.
TEST_P(SlabIsolationTest, AReaderOfAnotherUidIsRefusedEveryWayToWrite) {
  MakePool(/*seal_future_write=*/GetParam());
  const auto outcomes = Try(/*writable=*/false);
  EXPECT_EQ(outcomes.size(), 23u) << "the child did not make all attempts";
  EXPECT_THAT(Succeeded(outcomes),
              ElementsAre("mmap read", "open own memory", "see own descriptor"));
  // The attempts are refused for the expected reason, not because they were malformed.
  EXPECT_EQ(outcomes.at("mmap write"), EACCES);
  EXPECT_EQ(outcomes.at("mprotect write"), EACCES);
  EXPECT_EQ(outcomes.at("reopen for writing"), EACCES);
  EXPECT_EQ(outcomes.at("write"), EBADF);
  EXPECT_EQ(outcomes.at("punch a hole"), EBADF);
  EXPECT_EQ(outcomes.at("fchmod"), EPERM);
  EXPECT_EQ(outcomes.at("inherited mapping"), ENOMEM);
  EXPECT_TRUE(std::ranges::all_of(Bytes(), [](std::byte b) { return b == kOurs; }));
  struct stat info;
  ASSERT_EQ(fstat(target_.daemon_fd, &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(info.st_uid, geteuid());
  EXPECT_EQ(info.st_size, 2 << 20);
}
INSTANTIATE_TEST_SUITE_P(Seal, SlabIsolationTest, testing::Bool(), [](const auto& run) {
  return run.param ? "FutureWriteSealed" : "WritableByOthers";
});

// The control: the same attempts do succeed where they should.
using SlabIsolationControlTest = SlabIsolationTest;
TEST_P(SlabIsolationControlTest, AWriterOfAnotherUidWritesBytesAndNothingElse) {
  MakePool(/*seal_future_write=*/false);
  EXPECT_THAT(Succeeded(Try(/*writable=*/true)),
              ElementsAre("madvise remove", "mmap only write", "mmap read", "mmap write",
                          "mprotect write", "open own memory", "punch a hole", "see own descriptor",
                          "write", "write after F_SETFL"));
  EXPECT_FALSE(std::ranges::all_of(Bytes(), [](std::byte b) { return b == kOurs; }));
}
INSTANTIATE_TEST_SUITE_P(Writer, SlabIsolationControlTest, testing::Values(false));

}  // namespace
}  // namespace larder
