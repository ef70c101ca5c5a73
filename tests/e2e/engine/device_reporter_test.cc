// What an engine has in its own memory, as a real daemon knows it: a random history, and a model.
#include "client/engine/device_reporter.h"

#include <csignal>
#include <random>
#include <set>
#include <thread>

#include "client/engine/token_chain.h"
#include "gtest/gtest.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class DeviceReporterTest : public ::testing::Test {
 protected:
  static constexpr size_t kBlocks = 40;  // of each chain

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Start());
    SessionKeeper::Options options;
    options.client = {.socket_dir = folder_->path(), .connect_deadline = milliseconds(500)};
    options.session.engine_id = "device";
    options.contents = {maker_.content};
    options.variants = {maker_.variant, maker_.variant};  // two ranks
    for (uint32_t rank : {0, 1}) {
      options.variants[rank].rank = rank;
      options.variants[rank].ranks = 2;
    }
    options.backoff_max = milliseconds(100);
    options.look_every = milliseconds(20);
    keeper_.emplace(std::move(options));
    ASSERT_TRUE(keeper_->WaitServing(seconds(10)).ok());
    reporter_.emplace(*keeper_, DeviceReporter::Options{.look_every = milliseconds(20)});
  }
  void Start() {
    daemon_.reset();
    daemon_ = std::make_unique<DaemonProcess>(std::vector<std::string>{"--pool", "16MiB"},
                                              DaemonProcess::Options{.folder = folder_});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  }
  // Chains that have their first `shared` blocks in common.
  void MakeChains(size_t count, size_t shared) {
    const uint32_t each = maker_.variant.block_tokens;
    for (uint32_t chain = 0; chain < count; ++chain) {
      chains_.emplace_back(maker_.content.Id());
      std::vector<uint32_t> tokens(kBlocks * each);
      for (uint32_t i = 0; i < tokens.size(); ++i)
        tokens[i] = i < shared * each ? i : 1'000 * chain + i;
      chains_.back().Append(tokens);
    }
  }
  void Add(const TokenChain& chain, size_t first, size_t count) {
    const uint32_t each = maker_.variant.block_tokens;
    reporter_->Add(chain.ParentOf(first, each), chain.steps().subspan(first, count),
                   chain.tokens().subspan(first * each, count * each));
  }
  // Returns the numbers of the blocks of a chain that Lookup has in DEVICE.
  std::set<size_t> Found(const TokenChain& chain) {
    std::set<size_t> blocks;
    const auto live = keeper_->Get();
    if (live == nullptr) return blocks;
    const auto found =
        live->client->Lookup({.tenant = {},
                              .content = maker_.content,
                              .tokens = {},
                              .digests = {chain.steps().begin(), chain.steps().end()},
                              .engine_id = "device"});
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return blocks;
    for (const wire::InstanceHit& instance : found->instances)
      for (const wire::TierHit& tier : instance.tiers)
        if (tier.tier == Tier::kDevice)
          for (const TokenRange& range : tier.ranges)
            for (uint32_t at = range.begin; at < range.end; at += kStepTokens)
              blocks.insert(at / kStepTokens);
    return blocks;
  }

  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  BlockMaker maker_;
  std::vector<TokenChain> chains_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::optional<SessionKeeper> keeper_;
  std::optional<DeviceReporter> reporter_;
};

TEST_F(DeviceReporterTest, TheDaemonKnowsWhatIsThereAfterEachFlush) {
  MakeChains(4, 12);
  std::mt19937 rolls(testing::TestSeed());
  std::multiset<Digest> pages;  // the model: what each page holds
  const auto some = [&](size_t most) { return rolls() % most; };
  const uint64_t rounds = testing::Scaled(600);
  for (uint64_t round = 0; round < rounds; ++round) {
    for (size_t change = 1 + some(20); change > 0; --change) {
      const TokenChain& chain = chains_[some(chains_.size())];
      const size_t first = some(kBlocks), count = 1 + some(kBlocks - first);
      const auto digests = chain.steps().subspan(first, count);
      switch (some(10)) {
        case 0:
          if (some(5) > 0) break;
          reporter_->Clear();
          pages.clear();
          break;
        case 1:
        case 2:
        case 3:
        case 4:
          reporter_->Remove(digests);
          for (const Digest& digest : digests)
            if (const auto found = pages.find(digest); found != pages.end()) pages.erase(found);
          break;
        default:
          Add(chain, first, count);
          pages.insert(digests.begin(), digests.end());
      }
    }
    if (some(10) == 0) {
      const uint64_t sessions = reporter_->stats().sessions;
      daemon_->Kill9();
      ASSERT_NO_FATAL_FAILURE(Start());
      ASSERT_TRUE(Eventually([&] { return reporter_->stats().sessions > sessions; }));
    }
    ASSERT_TRUE(reporter_->Flush(seconds(10)).ok());
    for (const TokenChain& chain : chains_) {
      std::set<size_t> wanted;
      for (size_t block = 0; block < kBlocks; ++block)
        if (pages.contains(chain.steps()[block])) wanted.insert(block);
      ASSERT_TRUE(Eventually([&] { return Found(chain) == wanted; })) << "round " << round;
    }
    EXPECT_EQ(reporter_->stats().blocks, std::set(pages.begin(), pages.end()).size());
  }
}

// What the reporter sends is no answer of the daemon, which may hang.
TEST_F(DeviceReporterTest, CallsThatTimeOutOpenTheBreakerBesideReports) {
  MakeChains(1, 0);
  const auto live = keeper_->Get();
  ASSERT_NE(live, nullptr);
  daemon_->Signal(SIGSTOP);
  for (int call = 0; call < 3; ++call) {
    Add(chains_[0], 0, 1 + static_cast<size_t>(call));
    std::this_thread::sleep_for(milliseconds(150));  // several looks of the reporter
    keeper_->Note(*live, absl::DeadlineExceededError("no answer in time"));
  }
  EXPECT_TRUE(Eventually([&] { return keeper_->stats().breaker_open; }));
  daemon_->Signal(SIGCONT);
  EXPECT_TRUE(keeper_->WaitServing(seconds(10)).ok());
}

}  // namespace
}  // namespace larder::e2e
