// ClaimBoard: the protocol, and a scheduler and a worker in two processes that must never both use
// a page.
#include "client/claims/claim_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <thread>

#include "storage/clock.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Memory that a forked child shares.
class SharedBytes {
 public:
  explicit SharedBytes(size_t bytes)
      : bytes_(static_cast<std::byte*>(
                   mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
               bytes) {}
  ~SharedBytes() { munmap(bytes_.data(), bytes_.size()); }
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::span<std::byte> bytes_;
};

Digest DigestOf(uint8_t number) {
  Digest digest;
  digest.bytes.fill(static_cast<std::byte>(number));
  return digest;
}

class ClaimBoardTest : public ::testing::Test {
 protected:
  SharedBytes memory_{ClaimBoard::kBytes};
  ClaimBoard scheduler_{memory_.bytes()};
  ClaimBoard worker_{memory_.bytes()};
};

TEST_F(ClaimBoardTest, AClaimIsTakenWithItsWorkAndEnds) {
  const auto claim =
      scheduler_.Place({.digest = DigestOf(7), .page = 9, .promise = {3}, .deadline_unix_ms = 11});
  ASSERT_TRUE(claim);
  const auto taken = worker_.Take(10, milliseconds(0));
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].work.digest, DigestOf(7));
  EXPECT_EQ(taken[0].work.page, 9u);
  EXPECT_EQ(taken[0].work.promise.value, 3u);
  EXPECT_EQ(taken[0].work.deadline_unix_ms, 11u);
  EXPECT_THAT(worker_.Take(10, milliseconds(0)), IsEmpty());
  EXPECT_TRUE(worker_.BeginWrite(taken[0].id));
  EXPECT_FALSE(scheduler_.Withdraw(*claim));
  EXPECT_THAT(scheduler_.TakeEnded(), IsEmpty());
  worker_.End(taken[0].id, BlockStatus::kOk);
  const auto ended = scheduler_.TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].id, *claim);
  EXPECT_EQ(ended[0].status, BlockStatus::kOk);
  EXPECT_EQ(scheduler_.open(), 0u);
}

TEST_F(ClaimBoardTest, AWithdrawnClaimIsNeverWritten) {
  const auto before = scheduler_.Place({.page = 1});
  const auto behind = scheduler_.Place({.page = 2});
  EXPECT_TRUE(scheduler_.Withdraw(*before));
  const auto taken = worker_.Take(10, milliseconds(0));
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].work.page, 2u);
  EXPECT_TRUE(scheduler_.Withdraw(*behind));
  EXPECT_TRUE(scheduler_.Withdraw(*behind)) << "the page stays the scheduler's";
  EXPECT_FALSE(worker_.BeginWrite(taken[0].id));
  worker_.End(taken[0].id, BlockStatus::kCancelled);
  const auto ended = scheduler_.TakeEnded();
  ASSERT_THAT(ended, SizeIs(2));
  for (const ClaimBoard::Ended& one : ended) EXPECT_EQ(one.status, BlockStatus::kCancelled);
  EXPECT_EQ(scheduler_.open(), 0u);
}

TEST_F(ClaimBoardTest, ClaimsComeInOrderAndNoMoreThanFit) {
  std::vector<ClaimId> placed;
  for (uint32_t page = 0; page < ClaimBoard::kClaimsMax; ++page) {
    const auto claim = scheduler_.Place({.page = page});
    ASSERT_TRUE(claim);
    placed.push_back(*claim);
  }
  EXPECT_FALSE(scheduler_.Place({}));
  for (uint32_t page = 0; page < ClaimBoard::kClaimsMax; ++page) {
    const auto taken = worker_.Take(1, milliseconds(0));
    ASSERT_THAT(taken, SizeIs(1));
    EXPECT_EQ(taken[0].work.page, page);
    worker_.End(taken[0].id, BlockStatus::kMissing);
  }
  EXPECT_THAT(scheduler_.TakeEnded(), SizeIs(ClaimBoard::kClaimsMax));
  EXPECT_TRUE(scheduler_.Place({}));
  EXPECT_FALSE(scheduler_.broken() || worker_.broken());
}

TEST_F(ClaimBoardTest, PlaceWakesAWorkerThatWaits) {
  std::vector<ClaimBoard::Claim> taken;
  std::jthread waits([&] { taken = worker_.Take(1, milliseconds(60'000)); });
  std::this_thread::sleep_for(milliseconds(20));  // most likely it sleeps by now; if not, it passes
  ASSERT_TRUE(scheduler_.Place({.page = 5}));
  waits.join();
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].work.page, 5u);
}

TEST_F(ClaimBoardTest, AWorkerThatWaitsInVainReturns) {
  const TimePoint begun = SteadyNow();
  EXPECT_THAT(worker_.Take(1, milliseconds(5)), IsEmpty());
  EXPECT_LT(SteadyNow() - begun, std::chrono::seconds(10));
}

// Both at the same moment, as far as two threads can meet.
TEST_F(ClaimBoardTest, OneOfWithdrawAndBeginWriteWins) {
  const uint64_t rounds = testing::Scaled(500'000);
  std::atomic<uint64_t> round{0}, answered{0};
  std::atomic<uint32_t> claim{0};
  std::atomic<bool> writes{false};
  std::jthread other([&] {
    for (uint64_t mine = 1; mine <= rounds; ++mine) {
      while (round < mine) std::this_thread::yield();
      writes = worker_.BeginWrite(static_cast<ClaimId>(claim.load()));
      answered = mine;
    }
  });
  uint64_t withdrawn = 0;
  for (uint64_t mine = 1; mine <= rounds; ++mine) {
    const auto placed = scheduler_.Place({.page = 1});
    const ClaimId id = worker_.Take(1, milliseconds(0)).at(0).id;
    ASSERT_EQ(id, *placed);
    claim = static_cast<uint32_t>(id);
    round = mine;
    for (uint64_t spins = mine % 64; spins > 0; --spins) (void)scheduler_.Writes(id);
    const bool mine_again = scheduler_.Withdraw(id);
    while (answered < mine) std::this_thread::yield();
    EXPECT_NE(mine_again, writes.load());
    withdrawn += mine_again ? 1 : 0;
    worker_.End(id, BlockStatus::kCancelled);
    ASSERT_THAT(scheduler_.TakeEnded(), SizeIs(1));
  }
  EXPECT_GT(withdrawn, 0u);
}

// Whatever another process writes there, no thread touches anything outside, and none hangs.
TEST_F(ClaimBoardTest, DamagedMemoryBreaksTheBoardAndNothingElse) {
  std::mt19937 random(testing::TestSeed());
  for (int round = 0; round < 2'000; ++round) {
    SharedBytes memory(ClaimBoard::kBytes);
    ClaimBoard scheduler(memory.bytes());
    ClaimBoard worker(memory.bytes());
    for (int step = 0; step < 50; ++step) {
      (void)scheduler.Place({});
      for (const ClaimBoard::Claim& one : worker.Take(2, milliseconds(0)))
        worker.End(one.id, worker.BeginWrite(one.id) ? BlockStatus::kOk : BlockStatus::kCancelled);
      for (const ClaimBoard::Ended& one : scheduler.TakeEnded())
        ASSERT_LT(static_cast<size_t>(one.id), ClaimBoard::kClaimsMax);
      ASSERT_LE(scheduler.open(), ClaimBoard::kClaimsMax);
      const size_t at = random() % (step % 2 == 0 ? 6'000 : ClaimBoard::kBytes);
      memory.bytes()[at] = static_cast<std::byte>(random());
    }
  }
}

// ---- two processes

// A page of the engine.  `user` is 0, or the process that uses the page.
struct Page {
  std::atomic<uint32_t> user;
  std::atomic<uint64_t> content;
};
struct Engine {
  static constexpr size_t kPages = 64;
  std::array<Page, kPages> pages;
  std::atomic<uint64_t> clashes;  // times that a process found the other one in a page
  std::atomic<uint64_t> written;  // by the worker
};
constexpr uint32_t kScheduler = 1, kWorker = 2;

void Use(Engine& engine, uint32_t page, uint32_t user, uint64_t content) {
  if (engine.pages[page].user.exchange(user) != 0) ++engine.clashes;
  engine.pages[page].content = content;
  if (engine.pages[page].user.exchange(0) != user) ++engine.clashes;
}

// A worker with two threads, until it is killed.
[[noreturn]] void Work(ClaimBoard& board, Engine& engine) {
  const auto loader = [&] {
    std::mt19937 random(std::random_device{}());
    for (;;) {
      for (const ClaimBoard::Claim& claim : board.Take(1 + random() % 8, milliseconds(100))) {
        for (auto spins = random() % 20; spins > 0; --spins) std::this_thread::yield();
        if (random() % 8 == 0) {
          board.End(claim.id, BlockStatus::kMissing);
        } else if (board.BeginWrite(claim.id)) {
          Use(engine, claim.work.page, kWorker, claim.work.deadline_unix_ms);
          ++engine.written;
          board.End(claim.id, BlockStatus::kOk);
        } else {
          board.End(claim.id, BlockStatus::kCancelled);
        }
      }
    }
  };
  std::jthread second(loader);
  loader();
  _exit(0);
}

// Kills a child at the end of a test.
class Killed {
 public:
  explicit Killed(pid_t child) : child_(child) {}
  ~Killed() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Killed(const Killed&) = delete;
  Killed& operator=(const Killed&) = delete;

 private:
  const pid_t child_;
};

// The scheduler places a claim on a free page, and withdraws some; a page that is its own again it
// uses at once, as an engine that computes there.
class Pages {
 public:
  Pages(ClaimBoard& board, Engine& engine) : board_(board), engine_(engine) {
    for (uint32_t page = 0; page < Engine::kPages; ++page) free_.push_back(page);
  }
  void PlaceSome(std::mt19937& random) {
    while (!free_.empty() && random() % 8 != 0) {
      const uint32_t page = free_.back();
      const auto claim = board_.Place({.page = page, .deadline_unix_ms = ++placed_});
      if (!claim) return;
      free_.pop_back();
      claimed_[*claim] = {.page = page, .content = placed_, .unwanted = random() % 2 == 0};
    }
  }
  void WithdrawSome(std::mt19937& random) {
    for (auto& [claim, one] : claimed_) {
      if (!one.unwanted || one.withdrawn || random() % 16 != 0) continue;
      if (!board_.Withdraw(claim)) continue;
      one.withdrawn = true;
      Use(engine_, one.page, kScheduler, 0);
      ++withdrawn_;
    }
  }
  void TakeEnded() {
    for (const ClaimBoard::Ended& ended : board_.TakeEnded()) {
      const auto found = claimed_.find(ended.id);
      ASSERT_NE(found, claimed_.end());
      const Claimed& one = found->second;
      if (ended.status == BlockStatus::kOk) {
        EXPECT_FALSE(one.withdrawn);
        EXPECT_EQ(engine_.pages[one.page].content, one.content);
        ++loaded_;
      }
      Use(engine_, one.page, kScheduler, 0);
      free_.push_back(one.page);
      claimed_.erase(found);
    }
  }
  [[nodiscard]] bool idle() const { return claimed_.empty(); }
  [[nodiscard]] uint64_t placed() const { return placed_; }
  [[nodiscard]] uint64_t withdrawn() const { return withdrawn_; }
  [[nodiscard]] uint64_t loaded() const { return loaded_; }

 private:
  struct Claimed {
    uint32_t page = 0;
    uint64_t content = 0;
    bool unwanted = false;  // it is to be withdrawn, if that is possible
    bool withdrawn = false;
  };
  ClaimBoard& board_;
  Engine& engine_;
  std::vector<uint32_t> free_;
  std::map<ClaimId, Claimed> claimed_;
  uint64_t placed_ = 0, withdrawn_ = 0, loaded_ = 0;
};

TEST_F(ClaimBoardTest, SchedulerAndWorkerNeverUseAPageTogether) {
  std::mt19937 random(testing::TestSeed());
  SharedBytes shared(sizeof(Engine));
  auto& engine = *reinterpret_cast<Engine*>(shared.bytes().data());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) Work(worker_, engine);
  const Killed killed(child);
  Pages pages(scheduler_, engine);
  const uint64_t claims = testing::Scaled(200'000);
  const TimePoint until = SteadyNow() + std::chrono::seconds(100);
  while (pages.placed() < claims && !scheduler_.broken() && SteadyNow() < until) {
    pages.PlaceSome(random);
    pages.WithdrawSome(random);
    ASSERT_NO_FATAL_FAILURE(pages.TakeEnded());
    std::this_thread::yield();  // the worker may be on the same core
  }
  while (!pages.idle() && SteadyNow() < until) ASSERT_NO_FATAL_FAILURE(pages.TakeEnded());
  EXPECT_TRUE(pages.idle());
  EXPECT_FALSE(scheduler_.broken());
  EXPECT_EQ(engine.clashes, 0u);
  EXPECT_EQ(engine.written, pages.loaded());
  EXPECT_GT(pages.loaded(), claims / 20);
  EXPECT_GT(pages.withdrawn(), claims / 100);
}

TEST_F(ClaimBoardTest, OnlyAPageThatIsBeingWrittenStaysWithAWorkerThatDied) {
  const auto written = scheduler_.Place({.page = 1});
  const auto taken = scheduler_.Place({.page = 2});
  const auto placed = scheduler_.Place({.page = 3});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)worker_.BeginWrite(worker_.Take(2, milliseconds(0)).front().id);
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(scheduler_.Withdraw(*written));
  EXPECT_TRUE(scheduler_.Withdraw(*taken));
  EXPECT_TRUE(scheduler_.Withdraw(*placed));
  EXPECT_THAT(scheduler_.TakeEnded(), IsEmpty());
}

}  // namespace
}  // namespace larder
