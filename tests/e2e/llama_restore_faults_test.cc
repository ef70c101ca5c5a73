// A real model's prefix is restored while something goes wrong at a random moment: the daemon is
// killed, a record on its disk is damaged, or it stands still.  The answer is the computed one, bit
// for bit in its first logits, and nothing waits.
//
// What a restore took beside computing alone is printed, for each kind of fault; no timing decides
// the test but that of a hang: thrice as long and ten seconds.
// LARDER_TEST_SCALE (default 0.1) of 120 restores; LARDER_TEST_SEED replays the moments.
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
  // Computes it all.  Whatever the last fault has cost is stored again, and on disk.
  void ComputeAndStore() {
    const auto stored =
        RunPrompt(*prompt_, {.predict = 1, .mode = RestoreMode::kCompute}, engine_, cache_.get());
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_TRUE(stored->cache_status.ok()) << stored->cache_status << "\n" << daemon_->errors();
    alone_s_.push_back(stored->ttft_s);
    ASSERT_TRUE(Eventually(
        [&] { return daemon_->Metric("larder_disk_waiting{for=\"spill\"}") == 0; }, kDurableLimit));
  }
  // A daemon that has all of it on disk, and, unless its records are to be damaged, half of the
  // times in the pool.
  void Prepare(bool damages) {
    if (daemon_ == nullptr || !daemon_->alive() || random_() % 2 == 0) Start();
    ASSERT_NO_FATAL_FAILURE(ComputeAndStore());
    if (damages || random_() % 2 == 0) Start();  // from disk alone
  }
  void DamageRecords() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(disk_)) {
      std::error_code gone;
      const uint64_t bytes = entry.is_regular_file(gone) ? entry.file_size(gone) : 0;
      if (bytes < MiB(1).value()) continue;  // no data file
      const int fd = open(entry.path().c_str(), O_WRONLY | O_CLOEXEC);
      if (fd < 0) continue;
      for (int i = 0; i < 64; ++i) {
        const uint64_t junk = random_();
        (void)!pwrite(fd, &junk, sizeof junk, static_cast<off_t>(random_() % bytes));
      }
      close(fd);
    }
  }
  // Records that the daemon has found damaged.
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
  // The time to its first token.
  double RestoreThrough(Fault fault) {
    const double alone_s = Median(alone_s_);
    // A link that needs about as long as computing: both are at work when it strikes.
    const double rate = static_cast<double>(PrefixBytes()) / alone_s;
    TokenBucket link(rate);
    const RunOptions options{
        .predict = kPredict,
        .mode = RestoreMode::kAuto,
        .store = false,
        .profile = Believed(alone_s / static_cast<double>(prompt_->size()), rate),
        .link = &link};
    // What is damaged after it was read harms nothing, and half of it is read by the middle.
    const double latest = fault == Fault::kDamage ? 0.2 : 0.6;
    const std::chrono::duration<double> moment(
        alone_s * std::uniform_real_distribution<>(0, latest)(random_));
    std::thread striker([&] {
      std::this_thread::sleep_for(moment);  // a moment of the fault's own choosing
      Strike(fault);
    });
    const auto result = RunPrompt(*prompt_, options, engine_, cache_.get());
    striker.join();
    if (fault == Fault::kStall) daemon_->Signal(SIGCONT);
    if (fault == Fault::kKill) {
      EXPECT_TRUE(daemon_->Wait()) << "it survived";  // or it might seem alive to the next
    }
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return 0;
    ExpectComputed(*result);
    if (HasFailure() && result->restored) PrintSpans(result->restored->what);
    EXPECT_LT(result->ttft_s, 3 * alone_s + 10) << "it hung";
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
  std::unique_ptr<PromptCache> cache_;  // dies before its daemon
  std::map<Fault, uint64_t> loaded_;    // tokens
  std::map<Fault, uint64_t> useless_;   // loads that came to nothing, or too late
  double damaged_ = 0;
  std::vector<double> alone_s_;  // computing, to the first token
};

TEST_F(LlamaRestoreFaultsTest, TheAnswerIsRightAndNothingWaits) {
  const uint64_t restores = testing::Scaled(kRestores);
  std::map<Fault, std::vector<double>> ratios;
  for (uint64_t i = 0; i < restores && !HasFailure(); ++i) {
    const Fault fault = kFaults[i % kFaults.size()];
    SCOPED_TRACE(absl::StrCat("restore ", i, ", ", kNames[static_cast<size_t>(fault)]));
    ASSERT_NO_FATAL_FAILURE(Prepare(fault == Fault::kDamage));
    ratios[fault].push_back(RestoreThrough(fault) / alone_s_.back());
  }
  std::printf("computing alone: %.2f s in the median\n", Median(alone_s_));
  for (const auto& [fault, of_fault] : ratios) {
    std::printf(
        "%s: %zu restores, %lu tokens loaded, time / computing alone %.2f in the median, "
        "%.2f at most\n",
        kNames[static_cast<size_t>(fault)], of_fault.size(), loaded_[fault], Median(of_fault),
        std::ranges::max(of_fault));
  }
  // The faults were felt, or this proves nothing.
  EXPECT_GT(loaded_[Fault::kNone], 0u);
  if (restores < 12) return;
  EXPECT_GT(damaged_, 0);
  EXPECT_GT(useless_[Fault::kKill] + useless_[Fault::kStall], 0u);
}

}  // namespace
}  // namespace larder::llama
