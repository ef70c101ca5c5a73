// Restores a real model's prefix while a fault happens at a random moment: the daemon is killed,
// records on its disk are damaged, or the daemon is stopped.  The answer must equal the computed
// one, as must every bit of its first logits, and the restore must not hang.
//
// For each kind of fault the test prints the time of a restore as a multiple of computing alone.
// Times do not decide the test, except that a restore hangs if it takes longer than three times
// computing alone plus ten seconds.
// LARDER_TEST_SCALE (default 0.1) scales the 120 restores; LARDER_TEST_SEED replays the moments.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/llama_cpp/run.h"
#include "gtest/gtest.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/llama_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::llama {
namespace {

using e2e::DaemonProcess;

constexpr uint64_t kRestores = 120;
constexpr std::chrono::minutes kDurableLimit{1};

enum class Fault : uint8_t { kNone, kKill, kDamage, kStall };
constexpr std::array kFaults = {Fault::kNone, Fault::kKill, Fault::kDamage, Fault::kStall};
constexpr std::array kNames = {"none", "kill -9", "damaged records", "stalled daemon"};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

class LlamaRestoreFaultsTest : public LlamaFixture {
 protected:
  void Start() {
    cache_.reset();
    daemon_.reset();
    daemon_ = std::make_unique<DaemonProcess>(
        std::vector<std::string>{"--pool", "64MiB", "--disk", disk_},
        DaemonProcess::Options{.folder = folder_});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    auto cache = ConnectCache(folder_->path());
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  // Measures how long computing the whole prompt takes.
  void ComputeAlone() {
    const auto alone =
        RunPrompt(*prompt_, {.predict = 1, .mode = RestoreMode::kCompute}, engine_, nullptr);
    ASSERT_TRUE(alone.ok()) << alone.status();
    alone_s_.push_back(alone->ttft_s);
  }
  // Stores again on disk every block that the last fault has cost.
  void StoreOnDisk() {
    ASSERT_NO_FATAL_FAILURE(StorePrompt(cache_.get())) << daemon_->errors();
    ASSERT_TRUE(Eventually(
        [&] { return daemon_->Metric("larder_disk_waiting{for=\"spill\"}") == 0; }, kDurableLimit));
  }
  // Provides a daemon that has all blocks on disk and, in half of the cases, also in the pool.  If
  // its records are to be damaged, the pool is empty.
  void Prepare(bool damages) {
    if (daemon_ == nullptr || !daemon_->alive() || random_() % 2 == 0) Start();
    ASSERT_NO_FATAL_FAILURE(StoreOnDisk());
    if (damages || random_() % 2 == 0) Start();  // with an empty pool
  }
  void DamageRecords() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(disk_)) {
      std::error_code gone;
      const uint64_t bytes = entry.is_regular_file(gone) ? entry.file_size(gone) : 0;
      if (bytes < MiB(1).value()) continue;  // not a data file
      const int fd = open(entry.path().c_str(), O_WRONLY | O_CLOEXEC);
      if (fd < 0) continue;
      for (int i = 0; i < 64; ++i) {
        const uint64_t junk = random_();
        (void)!pwrite(fd, &junk, sizeof junk, static_cast<off_t>(random_() % bytes));
      }
      close(fd);
    }
  }
  // The number of records that the daemon has found damaged.
  [[nodiscard]] double Damaged() const {
    return std::max(0.0, daemon_->Metric("larder_disk_failures_total{kind=\"damaged\"}"));
  }
  void Strike(Fault fault) {
    if (fault == Fault::kKill) daemon_->Signal(SIGKILL);
    if (fault == Fault::kStall) daemon_->Signal(SIGSTOP);
    if (fault == Fault::kDamage) DamageRecords();
  }
  static uint64_t PrefixBytes() {
    uint64_t bytes = 0;
    for (size_t layer = 0; layer < engine_->shape().layers(); ++layer)
      bytes += engine_->shape()
                   .SegmentBytes(layer, PromptCache::RestorableTokens(kPromptTokens))
                   .value();
    return bytes;
  }
  // Restores the prefix through the fault.  Returns the time to the first token.
  double RestoreThrough(Fault fault) {
    const double alone_s = Median(alone_s_);
    // The link takes about as long as computing, so both are at work when the fault happens.
    const double rate = static_cast<double>(PrefixBytes()) / alone_s;
    TokenBucket link(rate);
    const RunOptions options{
        .predict = kPredict,
        .mode = RestoreMode::kAuto,
        .store = false,
        .profile = Believed(alone_s / static_cast<double>(prompt_->size()), rate),
        .link = &link};
    // Damage to a record that was already read has no effect, and by the middle half of them were.
    const double latest = fault == Fault::kDamage ? 0.2 : 0.6;
    const std::chrono::duration<double> moment(
        alone_s * std::uniform_real_distribution<>(0, latest)(random_));
    std::thread striker([&] {
      std::this_thread::sleep_for(moment);
      Strike(fault);
    });
    const auto result = RunPrompt(*prompt_, options, engine_, cache_.get());
    striker.join();
    if (fault == Fault::kStall) daemon_->Signal(SIGCONT);
    if (fault == Fault::kKill) {
      // Wait, or the next restore might find the daemon alive.
      EXPECT_TRUE(daemon_->Wait()) << "the daemon survived SIGKILL";
    }
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return 0;
    ExpectComputed(*result);
    if (HasFailure() && result->restored) PrintSpans(result->restored->what);
    EXPECT_LT(result->ttft_s, 3 * alone_s + 10) << "the restore hung";
    if (fault == Fault::kDamage) damaged_ += Damaged();
    if (result->restored) {
      for (const Restorer::Span& span : result->restored->what.spans) useless_[fault] += !span.used;
    }
    loaded_[fault] += result->restored ? result->restored->what.loaded_tokens : 0;
    return result->ttft_s;
  }

  static void PrintSpans(const Restorer::Restored& what) {
    for (const Restorer::Span& span : what.spans) {
      std::printf("[%u, %u) channel %u, %.3f to %.3f s%s\n", span.tokens.begin, span.tokens.end,
                  static_cast<unsigned>(span.channel), span.begin_s, span.end_s,
                  span.used ? "" : ", of no use");
    }
  }

  std::mt19937_64 random_{testing::TestSeed()};
  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  const std::string disk_ = folder_->File("disk");
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<PromptCache> cache_;  // destroyed before its daemon
  std::map<Fault, uint64_t> loaded_;    // tokens
  std::map<Fault, uint64_t> useless_;   // loads that failed or came too late
  double damaged_ = 0;
  std::vector<double> alone_s_;  // times to the first token of computing alone
};

TEST_F(LlamaRestoreFaultsTest, FaultsDuringARestoreNeitherChangeTheAnswerNorHangIt) {
  const uint64_t restores = testing::Scaled(kRestores);
  std::map<Fault, std::vector<double>> ratios;
  for (uint64_t i = 0; i < restores && !HasFailure(); ++i) {
    const Fault fault = kFaults[i % kFaults.size()];
    SCOPED_TRACE(absl::StrCat("restore ", i, ", ", kNames[static_cast<size_t>(fault)]));
    ASSERT_NO_FATAL_FAILURE(Prepare(fault == Fault::kDamage));
    if (i % 3 == 0) {  // more than once, because other tests may slow the machine down for a while
      ASSERT_NO_FATAL_FAILURE(ComputeAlone());
    }
    ratios[fault].push_back(RestoreThrough(fault) / alone_s_.back());
  }
  std::printf("computing alone: median %.2f s\n", Median(alone_s_));
  for (const auto& [fault, of_fault] : ratios) {
    std::printf(
        "%s: %zu restores, %lu tokens loaded, time / computing alone: median %.2f, maximum %.2f\n",
        kNames[static_cast<size_t>(fault)], of_fault.size(), loaded_[fault], Median(of_fault),
        std::ranges::max(of_fault));
  }
  // If the faults had no effect, this test proves nothing.
  EXPECT_GT(loaded_[Fault::kNone], 0u);
  if (restores < 12) return;
  EXPECT_GT(damaged_, 0);
  EXPECT_GT(useless_[Fault::kKill] + useless_[Fault::kStall], 0u);
}

}  // namespace
}  // namespace larder::llama
