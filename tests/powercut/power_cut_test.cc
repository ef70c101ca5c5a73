// The real daemon after a loss of power: its disk is an ext4 file system on a loop device, whose
// image is copied at random moments while the daemon is stopped.  What the page cache of that file
// system had not written is not in the copy.  The next daemon over the copy must have what was
// promised before.
//
// LARDER_TEST_SCALE (default 0.1) scales the 200 cuts.  LARDER_TEST_SEED repeats the draws, but not
// the timing.
#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/powercut/loop_disk.h"
#include "tests/powercut/memory_folder.h"
#include "tests/powercut/promise_engine.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::powercut {
namespace {

using e2e::DaemonProcess;

constexpr uint64_t kCuts = 200;
constexpr uint64_t kCutsOfALife = 10;
constexpr ByteCount kImage = MiB(160);
constexpr uint32_t kVersionsOfALife = 1'000'000;

class PowerCut : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = LoopDisk::WhyNot(); !why.empty()) GTEST_SKIP() << why;
    for (const std::string& place : {now_, next_}) std::filesystem::create_directory(place);
  }

  // Runs one daemon over the image, or over a new one, and cuts the power `cuts` times.  What the
  // last cut left becomes the image.
  void Live(uint64_t life, uint64_t cuts) {
    auto disk = life == 0 ? LoopDisk::Make(image_, kImage, now_) : LoopDisk::Mount(image_, now_);
    ASSERT_TRUE(disk.ok()) << disk.status();
    DaemonProcess daemon(FlagsFor(now_ + "/disk"));
    ASSERT_TRUE(daemon.serves()) << daemon.errors();
    Ledger ledger;
    Tell(found_, &ledger);
    PromiseEngine engine(daemon, ledger, seed_ + life,
                         static_cast<uint32_t>(life) * kVersionsOfALife, found_);
    for (uint64_t cut = 0; cut < cuts && !HasFailure(); ++cut) {
      SCOPED_TRACE(absl::StrCat("life ", life, ", cut ", cut));
      AwaitMoment(ledger, engine);
      const Promises promises = ledger.At([&] { daemon.Signal(SIGSTOP); });
      const absl::StatusOr<int> copies = (*disk)->CopyImage(copy_);
      daemon.Signal(SIGCONT);
      ASSERT_TRUE(copies.ok()) << copies.status();
      copies_ += static_cast<uint64_t>(*copies);
      JudgeCopy(promises);
    }
    for (const std::string& failure : engine.failures()) ADD_FAILURE() << failure;
    engine.StopSoon();
    daemon.Kill9();
    disk->reset();
    std::filesystem::rename(copy_, image_);
  }

 private:
  // Waits for a random moment, or right behind a promise, because the latest promise is the most
  // likely to be broken.
  void AwaitMoment(const Ledger& ledger, const PromiseEngine& engine) {
    const uint64_t until = ledger.heard() + 1 + random_() % 60;
    EXPECT_TRUE(Eventually([&] { return ledger.heard() >= until || !engine.failures().empty(); }));
    if (random_() % 2 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 50'000));
  }
  void JudgeCopy(const Promises& promises) {
    auto disk = LoopDisk::Mount(copy_, next_);
    ASSERT_TRUE(disk.ok()) << disk.status();
    found_ = StartAndJudge(next_ + "/disk", promises, &tally_);
  }

 protected:
  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  MemoryFolder folder_;
  const std::string image_ = folder_.path() + "/image", copy_ = folder_.path() + "/copy",
                    now_ = folder_.path() + "/now", next_ = folder_.path() + "/next";
  Found found_;
  Tally tally_;
  uint64_t copies_ = 0;
};

TEST_F(PowerCut, KeepsWhatWasPromised) {
  const uint64_t cuts = testing::Scaled(kCuts);
  for (uint64_t life = 0; tally_.looks < cuts && !HasFailure(); ++life)
    ASSERT_NO_FATAL_FAILURE(Live(life, std::min(kCutsOfALife, cuts - tally_.looks)));
  Print("power cuts", tally_);
  std::printf("%lu copies, some repeated because the kernel wrote during them\n", copies_);
  EXPECT_TRUE(HasFailure() || tally_.promised > 10 * cuts)
      << "too few promises were given to test anything";
}

}  // namespace
}  // namespace larder::powercut
