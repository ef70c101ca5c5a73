// Processes take turns at the threads, and no process keeps the others out of the queue.
#include "server/runtime/worker_pool.h"

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "storage/mutex.h"

namespace larder {
namespace {

// Of the same user by default.
ShareHolder Process(uint64_t number, uid_t uid = 1000) {
  return {.uid = uid, .process = ProcessId{number}, .pid = static_cast<pid_t>(number)};
}
const ShareHolder kGreedy = Process(1), kVictim = Process(2), kThird = Process(3);
const ShareHolder kOther = Process(77, 2000);

class WorkerPoolTest : public ::testing::Test {
 protected:
  static constexpr size_t kJobs = 16, kBytes = 1600;

  WorkerPoolTest() {
    EXPECT_TRUE(pool_->Submit(kGreedy, 0, [this] {
      begun_.count_down();
      go_.wait();
    }));
    begun_.wait();
  }
  ~WorkerPoolTest() override {
    if (pool_ != nullptr) Finish();
  }
  // Submits jobs of `bytes` for `who` until one is refused.  Returns how many were accepted.
  size_t Fill(const ShareHolder& who, size_t bytes) {
    size_t taken = 0;
    while (pool_->Submit(who, bytes, [this, who] { Done(who); })) ++taken;
    return taken;
  }
  void Done(const ShareHolder& who) {
    MutexLock lock(mu_);
    done_.push_back(who.process);
  }
  // Returns the processes in the order in which their jobs ran.
  std::vector<ProcessId> Finish() {
    go_.count_down();
    pool_.reset();
    MutexLock lock(mu_);
    return done_;
  }

  std::latch begun_{1}, go_{1};
  std::unique_ptr<WorkerPool> pool_ = std::make_unique<WorkerPool>(1, kJobs, kBytes);

 private:
  Mutex mu_;
  std::vector<ProcessId> done_ LARDER_GUARDED_BY(mu_);
};

TEST_F(WorkerPoolTest, OneJobOfEachProcessInTurn) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(pool_->Submit(kGreedy, 0, [this] { Done(kGreedy); }));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(pool_->Submit(kVictim, 0, [this] { Done(kVictim); }));
  const ProcessId greedy = kGreedy.process, victim = kVictim.process;
  const std::vector<ProcessId> expected = {greedy, victim, greedy, victim, greedy, greedy};
  EXPECT_EQ(Finish(), expected);
}

TEST_F(WorkerPoolTest, OneJobOfEachUserInTurnHoweverManyProcessesItHas) {
  for (uint64_t process = 1; process <= 6; ++process) {
    const ShareHolder who = Process(process);
    EXPECT_TRUE(pool_->Submit(who, 0, [this, who] { Done(who); }));
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(pool_->Submit(kOther, 0, [this] { Done(kOther); }));
  const std::vector<ProcessId> done = Finish();
  ASSERT_EQ(done.size(), 8u);
  EXPECT_EQ(done[1], kOther.process);
  EXPECT_EQ(done[3], kOther.process);
}

TEST_F(WorkerPoolTest, AProcessGetsHalfOfTheQueueAndOthersHalfOfTheRest) {
  EXPECT_EQ(Fill(kGreedy, 0), kJobs / 2);
  EXPECT_EQ(Fill(kVictim, 0), kJobs / 4);
  EXPECT_EQ(Fill(kThird, 0), kJobs / 8);
  for (uint64_t id = 4; id < 40; ++id)
    EXPECT_GE(Fill(Process(id), 0), 1u)
        << "a process without a queued job gets a slot, however many processes there are";
}

TEST_F(WorkerPoolTest, AProcessGetsHalfOfTheBytesAndOthersHalfOfTheRest) {
  EXPECT_EQ(Fill(kGreedy, 100), 8u);
  EXPECT_EQ(Fill(kVictim, 100), 4u);
  EXPECT_EQ(Fill(kThird, 2 * kBytes), 1u) << "a process's only job is accepted, however large";
}

TEST_F(WorkerPoolTest, FinishedJobsFreeTheirSlots) {
  EXPECT_EQ(Fill(kGreedy, 100), 8u);
  go_.count_down();
  std::latch done(1);
  EXPECT_TRUE(pool_->Submit(kVictim, 0, [&done] { done.count_down(); }));
  done.wait();
  std::latch last(1);
  while (!pool_->Submit(kGreedy, 0, [&last] { last.count_down(); })) std::this_thread::yield();
  last.wait();
  std::latch stop(1), begun(1);
  EXPECT_TRUE(pool_->Submit(kGreedy, 0, [&] {
    begun.count_down();
    stop.wait();
  }));
  begun.wait();
  EXPECT_EQ(Fill(kGreedy, 100), 8u);
  stop.count_down();
  pool_.reset();
}

TEST_F(WorkerPoolTest, HelpersLeaveSlotsForJobs) {
  for (size_t i = 0; i < 2 * kJobs; ++i) pool_->Help(kGreedy, [this] { Done(kGreedy); });
  EXPECT_GE(Fill(kGreedy, 0), 1u);
  EXPECT_GE(Fill(kVictim, 0), 2u);
  EXPECT_LT(Finish().size(), kJobs);
}

TEST_F(WorkerPoolTest, AnUndividedQueueCanBeFilledByOneCaller) {
  size_t taken = 0;
  while (pool_->Submit([] {})) ++taken;
  EXPECT_EQ(taken, kJobs);
}

// A job's captures are destroyed when it ends, not when the thread takes its next job.
TEST_F(WorkerPoolTest, CapturesAreDestroyedWhenTheJobEnds) {
  auto kept = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = kept;
  EXPECT_TRUE(pool_->Submit(kVictim, 0, [kept = std::move(kept)] {}));
  go_.count_down();
  while (!watched.expired()) std::this_thread::yield();
  pool_.reset();
}

}  // namespace
}  // namespace larder
