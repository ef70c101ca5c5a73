// A process that puts and erases is killed at any instant, thousands of times over one directory:
// the next one starts, has every block that was durable and not erased, byte for byte, and no room
// is lost.
//
// Parent and child share a page of notes: what was durable, what was being erased.  The child is
// killed from outside at a random moment, or dies at a fault point.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/storage/disk/disk_blocks.h"
#include "tests/temporary_directory.h"
#include "tests/test_scale.h"

namespace larder::testing {
namespace {

constexpr ByteCount kLimit = MiB(160);
constexpr uint64_t kKills = 500;
constexpr int kTimesEachPoint = 3;
constexpr size_t kNumbers = 96;  // blocks that there may be

// What the child has said of a block, in memory that outlives it.
enum Said : uint8_t { kAbsent, kPutting, kDurable, kErasing };
struct Notes {
  std::atomic<uint8_t> said[kNumbers];
  std::atomic<uint64_t> verified;  // starts whose findings were right
  std::atomic<uint64_t> wrong, lost, leaked, back;
  std::atomic<bool> working;
};

DiskBlock BlockNumbered(size_t number) {
  std::mt19937_64 random(number);
  const auto segments = static_cast<uint32_t>(1 + random() % 20);
  const auto bytes = static_cast<uint32_t>(1 + random() % 40'000);
  return {number + 1, segments, bytes};
}

// One life: looks at what is there, then works until it dies.
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

  // A life with these faults; killed so long after it began to work (negative: it dies by itself).
  // Answers its wait status.
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
    // One that should die by itself and does not is a failure, not a hang.
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
    EXPECT_EQ(notes_->back, 0u) << "blocks came back after their erasure was over";
    EXPECT_EQ(notes_->verified, lives);
  }

  Notes* notes_;
  TemporaryDirectory directory_;
  uint64_t seed_ = 0;
};

TEST_F(DiskCrash, KilledAtAnyMoment) {
  std::mt19937_64 random(std::random_device{}());
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

// A crash at each step of a put and of an erasure.
TEST_F(DiskCrash, AtEachFaultPoint) {
  constexpr int kDied = 66;  // FaultPoints' _exit
  uint64_t verified = 0;
  for (size_t point = 0; point < kFaultPoints; ++point) {
    const std::string name(ToString(static_cast<FaultPoint>(point)));
    for (int time = 0; time < kTimesEachPoint; ++time) {
      SCOPED_TRACE(absl::StrCat(name, " ", time));
      // Only a damaged directory reaches it: file_disk_tier_faults_test.  Facts are the daemon's.
      if (name == "shard.set-aside" || name == "catalog.facts") continue;
      if (name.starts_with("data.create")) StartOver();
      // Work comes to most points without end, a start to these a few times only.
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

}  // namespace
}  // namespace larder::testing
