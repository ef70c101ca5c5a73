// Processes take turns at the threads, and none keeps the others out of the queue.
#include "server/runtime/worker_pool.h"

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "storage/mutex.h"

namespace larder {
namespace {

// Of one user, but for the other one.
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
  // How many jobs of so many bytes are taken of it.
  size_t Fill(const ShareHolder& who, size_t bytes) {
    size_t taken = 0;
    while (pool_->Submit(who, bytes, [this, who] { Done(who); })) ++taken;
    return taken;
  }
  void Done(const ShareHolder& who) {
    MutexLock lock(mu_);
    done_.push_back(who.process);
  }
  // In what order they were done.
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

TEST_F(WorkerPoolTest, OneJobOfEachUserInTurnHoweverManyProcessesHeHas) {
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
    EXPECT_GE(Fill(Process(id), 0), 1u) << "who has none is taken, however many there are";
}

TEST_F(WorkerPoolTest, AndOfTheBytes) {
  EXPECT_EQ(Fill(kGreedy, 100), 8u);
  EXPECT_EQ(Fill(kVictim, 100), 4u);
  EXPECT_EQ(Fill(kThird, 2 * kBytes), 1u) << "a job alone is taken, however long";
}

TEST_F(WorkerPoolTest, WhatWasTakenGivesItsRoomBack) {
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

TEST_F(WorkerPoolTest, HelpersLeaveRoomForJobs) {
  for (size_t i = 0; i < 2 * kJobs; ++i) pool_->Help(kGreedy, [this] { Done(kGreedy); });
  EXPECT_GE(Fill(kGreedy, 0), 1u);
  EXPECT_GE(Fill(kVictim, 0), 2u);
  EXPECT_LT(Finish().size(), kJobs);
}

TEST_F(WorkerPoolTest, CallersThatMayHaveAllFillIt) {
  size_t taken = 0;
  while (pool_->Submit([] {})) ++taken;
  EXPECT_EQ(taken, kJobs);
}

// A job's captures go with it, and do not wait for the next one.
TEST_F(WorkerPoolTest, WhatAJobKeepsIsFreedAfterIt) {
  auto kept = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = kept;
  EXPECT_TRUE(pool_->Submit(kVictim, 0, [kept = std::move(kept)] {}));
  go_.count_down();
  while (!watched.expired()) std::this_thread::yield();
  pool_.reset();
}

}  // namespace
}  // namespace larder
