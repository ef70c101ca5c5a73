// A process that puts and erases blocks is killed at any instant, thousands of times over one
// directory.  Each time the next process starts, finds every block that was durable and not erased,
// byte for byte, and no disk space is lost.
//
// Parent and child share a page of notes about which blocks were durable and which were being
// erased.  The parent kills the child at a random moment, or the child dies at a fault point.
//
// To know what a loss of power leaves of a catalog's log, this program defines its own function
// under the name of the C library's, which everything linked here calls.  tests/powercut draws
// everything that a loss of power may leave of a directory.
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace larder::testing {
namespace {

constexpr ByteCount kLimit = MiB(160);
constexpr uint64_t kKills = 500;
constexpr int kTimesEachPoint = 3;
constexpr size_t kNumbers = 96;  // how many different blocks there may be

// The length of each catalog log when it was last synced.
class SyncedLogs {
 public:
  void Synced(int fd) {
    std::array<char, 4096> path{};
    const std::string link = absl::StrCat("/proc/self/fd/", fd);
    const ssize_t bytes = readlink(link.c_str(), path.data(), path.size());
    struct stat found {};
    if (bytes <= 0 || fstat(fd, &found) != 0) return;
    MutexLock lock(mu_);
    bytes_[std::string(path.data(), static_cast<size_t>(bytes))] =
        static_cast<uint64_t>(found.st_size);
  }
  // Discards what was not synced of the logs in a directory.  REQUIRES: no process has them open.
  void CutOff(const std::filesystem::path& directory) {
    MutexLock lock(mu_);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.path().extension() != ".log") continue;
      const auto synced = bytes_.find(std::filesystem::canonical(entry.path()).string());
      std::filesystem::resize_file(
          entry.path(),
          synced == bytes_.end() ? 0 : std::min<uint64_t>(synced->second, entry.file_size()));
    }
  }

 private:
  Mutex mu_;
  std::map<std::string, uint64_t> bytes_ LARDER_GUARDED_BY(mu_);
};
SyncedLogs& Logs() {
  static auto* const logs = new SyncedLogs;  // never destroyed
  return *logs;
}

}  // namespace
}  // namespace larder::testing

extern "C" int fdatasync(int fd) {
  const auto result = static_cast<int>(syscall(SYS_fdatasync, fd));
  if (result == 0) larder::testing::Logs().Synced(fd);
  return result;
}

namespace larder::testing {
namespace {

// What the child has noted about a block, in memory that outlives the child.
enum Said : uint8_t { kAbsent, kPutting, kDurable, kErasing };
struct Notes {
  std::atomic<uint8_t> said[kNumbers];
  std::atomic<uint64_t> verified;  // starts that found everything right
  std::atomic<uint64_t> wrong, lost, leaked, back;
  std::atomic<bool> working;
};

DiskBlock BlockNumbered(size_t number) {
  std::mt19937_64 random(number);
  const auto segments = static_cast<uint32_t>(1 + random() % 20);
  const auto bytes = static_cast<uint32_t>(1 + random() % 40'000);
  return {number + 1, segments, bytes};
}

// One life of the child: it examines what is there, then works until it dies.
class Life {
 public:
  Life(const std::string& directory, const std::string& faults, Notes* notes) : notes_(*notes) {
    FileDiskTier::Options options;
    options.directory = directory;
    options.limit = kLimit;
    options.faults = &faults_;
    LARDER_CHECK(faults_.Arm(faults).ok());
    auto tier = FileDiskTier::Open(options);
    LARDER_CHECK(tier.ok());
    tier_ = *std::move(tier);
  }

  void Run(uint64_t seed) {
    Verify();
    notes_.working = true;
    std::mt19937_64 random(seed);
    for (;;) {
      const size_t number = random() % kNumbers;
      if (notes_.said[number] == kDurable) {
        notes_.wrong += Has(*tier_, BlockNumbered(number), locations_[number]) ? 0 : 1;
        Erase(number);
      } else {
        PutSome(number, 1 + random() % 6);
      }
    }
  }

 private:
  void Verify() {
    ByteCount used;
    std::map<Digest, DiskLocation> there;
    for (const DiskTier::Entry& entry : RecoverAll(*tier_)) {
      there[entry.key.digest] = entry.location;
      used += entry.disk_bytes;
    }
    for (size_t number = 0; number < kNumbers; ++number) {
      const DiskBlock block = BlockNumbered(number);
      const auto found = there.find(block.key().digest);
      const uint8_t said = notes_.said[number];
      if (found == there.end()) {
        notes_.lost += said == kDurable ? 1 : 0;
        notes_.said[number] = kAbsent;
        continue;
      }
      notes_.back += said == kAbsent ? 1 : 0;
      const bool right = Has(*tier_, block, found->second);
      notes_.lost += !right && said == kDurable ? 1 : 0;
      notes_.wrong += !right && said != kDurable ? 1 : 0;
      locations_[number] = found->second;
      notes_.said[number] = kDurable;
    }
    notes_.leaked += (tier_->stats().used - used).value();
    ++notes_.verified;
  }

  void PutSome(size_t from, size_t count) {
    std::vector<size_t> numbers;
    for (size_t number = from; number < kNumbers && numbers.size() < count; ++number) {
      if (notes_.said[number] == kAbsent) numbers.push_back(number);
    }
    std::vector<DiskBlock> blocks;
    for (const size_t number : numbers) blocks.push_back(BlockNumbered(number));
    std::vector<DiskTier::NewBlock> news;
    for (const DiskBlock& block : blocks) news.push_back(block.AsNew());
    std::vector<DiskTier::PutResult> results(news.size());
    for (const size_t number : numbers) notes_.said[number] = kPutting;
    tier_->Put(news, results);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const bool durable = results[i].status == DiskTier::PutStatus::kOk;
      locations_[numbers[i]] = results[i].location;
      notes_.said[numbers[i]] = durable ? kDurable : kAbsent;
    }
  }

  void Erase(size_t number) {
    notes_.said[number] = kErasing;
    EraseOne(*tier_, {BlockNumbered(number).key(), locations_[number]});
    notes_.said[number] = kAbsent;
  }

  Notes& notes_;
  FaultPoints faults_;
  std::unique_ptr<FileDiskTier> tier_;
  DiskLocation locations_[kNumbers] = {};
};

class DiskCrash : public ::testing::Test {
 protected:
  DiskCrash() {
    void* memory =
        mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    LARDER_CHECK(memory != MAP_FAILED);
    notes_ = new (memory) Notes{};
  }
  ~DiskCrash() override { munmap(notes_, sizeof(Notes)); }

  // Runs a life with these faults and kills it after it has worked for `work`; if `work` is
  // negative, it dies by itself. Returns its wait status.
  int Live(const std::string& faults, std::chrono::microseconds work) {
    notes_->working = false;
    const uint64_t seed = ++seed_;
    const pid_t child = fork();
    LARDER_CHECK(child >= 0);
    if (child == 0) {
      Life(directory_.path() + "/disk", faults, notes_).Run(seed);
      _exit(0);
    }
    int status = 0;
    if (work.count() >= 0) {
      while (!notes_->working && waitpid(child, &status, WNOHANG) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(work);
      kill(child, SIGKILL);
    }
    // If a life that should die by itself does not, the test fails instead of hanging.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) kill(child, SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return status;
  }

  void StartOver() {
    std::filesystem::remove_all(directory_.path() + "/disk");
    for (std::atomic<uint8_t>& said : notes_->said) said = kAbsent;
  }

  void ExpectNothingLost(uint64_t lives) const {
    EXPECT_EQ(notes_->wrong, 0u);
    EXPECT_EQ(notes_->lost, 0u);
    EXPECT_EQ(notes_->leaked, 0u);
    EXPECT_EQ(notes_->back, 0u) << "blocks came back after their erasure had completed";
    EXPECT_EQ(notes_->verified, lives);
  }

  Notes* notes_;
  TemporaryDirectory directory_;
  uint64_t seed_ = TestSeed();
};

TEST_F(DiskCrash, KilledAtAnyMoment) {
  std::mt19937_64 random(seed_);
  const uint64_t kills = Scaled(kKills);
  for (uint64_t i = 0; i < kills; ++i) {
    const int status = Live("", std::chrono::microseconds(random() % 60'000));
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }
  std::printf("%lu kills: %lu starts right, %lu wrong, %lu lost, %lu bytes leaked\n", kills,
              notes_->verified.load(), notes_->wrong.load(), notes_->lost.load(),
              notes_->leaked.load());
  ExpectNothingLost(kills);
}

// The process crashes at each step of a put and of an erasure.
TEST_F(DiskCrash, AtEachFaultPoint) {
  constexpr int kDied = 66;  // FaultPoints' _exit
  uint64_t verified = 0;
  for (size_t point = 0; point < kFaultPoints; ++point) {
    const std::string name(ToString(static_cast<FaultPoint>(point)));
    for (int time = 0; time < kTimesEachPoint; ++time) {
      SCOPED_TRACE(absl::StrCat(name, " ", time));
      // shard.set-aside is reached only with a damaged directory, in file_disk_tier_faults_test.
      // Facts and sockets belong to the daemon.
      const auto elsewhere = {"shard.set-aside", "catalog.facts", "socket.rights"};
      if (std::ranges::find(elsewhere, name) != elsewhere.end()) continue;
      if (name.starts_with("data.create")) StartOver();
      // Most points are reached again and again during the work, these only a few times at the
      // start.
      const bool at_start =
          name == "catalog.open" || name == "catalog.scan" || name.starts_with("data.create");
      const int status = Live(absl::StrCat(name, "=crash/", time == 0 || at_start ? 1 : 5),
                              std::chrono::microseconds(-1));
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kDied) << status;
      ASSERT_TRUE(WIFSIGNALED(Live("", std::chrono::milliseconds(2))));
      ++verified;
    }
  }
  EXPECT_GE(notes_->verified, verified);
  ExpectNothingLost(notes_->verified);
}

class PowerLoss : public ::testing::Test {
 protected:
  PowerLoss() { Open(); }
  void Open() {
    FileDiskTier::Options options;
    options.directory = path();
    options.limit = FileDiskTier::kLimitMin;  // two shards
    auto tier = FileDiskTier::Open(options);
    LARDER_CHECK(tier.ok());
    tier_ = *std::move(tier);
    entries_.clear();
    for (const DiskTier::Entry& entry : RecoverFirsts(*tier_)) entries_[entry.key.digest] = entry;
  }
  // Erasures that were not synced are lost.
  void CutPower() {
    tier_.reset();
    Logs().CutOff(path());
    Open();
  }
  [[nodiscard]] DiskAddress Put(const DiskBlock& block) {
    const DiskTier::PutResult put = PutOne(*tier_, block);
    EXPECT_EQ(put.status, DiskTier::PutStatus::kOk);
    return {block.key(), put.location};
  }
  // Puts a block in the first shard such that, once it is erased, the next block goes to the second
  // shard.
  [[nodiscard]] DiskAddress PutInFirst(const DiskBlock& block) {
    const DiskAddress there = Put(block);
    (void)Put(DiskBlock(101, 2, 100'000));
    (void)Put(DiskBlock(102, 4, 100'000));
    return there;
  }
  [[nodiscard]] bool Finds(const DiskBlock& block) {
    const auto found = entries_.find(block.key().digest);
    return found != entries_.end() && Has(*tier_, block, found->second.location);
  }
  [[nodiscard]] std::string path() const { return directory_.path() + "/disk"; }

  TemporaryDirectory directory_;
  std::unique_ptr<FileDiskTier> tier_;
  std::map<Digest, DiskTier::Entry> entries_;
};

TEST_F(PowerLoss, UndoesErasuresThatWereNotSynced) {
  const DiskBlock block(1, 2, 10'000);
  const DiskAddress there = PutInFirst(block);
  EraseOne(*tier_, there);
  CutPower();
  EXPECT_TRUE(Finds(block)) << "if an unsynced erasure survives, these tests prove nothing";
  EraseOne(*tier_, {block.key(), entries_.at(block.key().digest).location});
  ASSERT_TRUE(tier_->SyncErasures().ok());
  CutPower();
  EXPECT_EQ(entries_.size(), 2u);
}

// The shard with the older record is recovered before the shard with the newer one.
TEST_F(PowerLoss, BringsNoBlockBackInPlaceOfANewerOne) {
  for (const bool forgotten : {false, true}) {
    SCOPED_TRACE(forgotten);
    const DiskBlock older(1, 2, 10'000), newer(1, 3, 20'000);
    const DiskAddress there = PutInFirst(older);
    if (forgotten) {
      ASSERT_TRUE(tier_->Forget({&there, 1}).ok());
    } else {
      EraseOne(*tier_, there);
    }
    (void)Put(newer);
    CutPower();
    EXPECT_TRUE(Finds(newer));
    EXPECT_EQ(entries_.size(), 3u);
    CutPower();
    EXPECT_TRUE(Finds(newer)) << "the recovery at start must not change the result";
    tier_.reset();
    std::filesystem::remove_all(path());
    Open();
  }
}

// The space of the erased record belongs to another record by then.
TEST_F(PowerLoss, BringsNoBlockBackWhoseSpaceWasReused) {
  const DiskBlock older(1, 2, 10'000), newer(1, 3, 20'000);
  EraseOne(*tier_, PutInFirst(older));
  (void)Put(newer);
  const DiskBlock other(2, 2, 10'000);
  (void)Put(other);
  CutPower();
  EXPECT_TRUE(Finds(newer));
  EXPECT_TRUE(Finds(other));
  EXPECT_EQ(tier_->stats().blocks, 4u);
}

}  // namespace
}  // namespace larder::testing
