// Pins with durable facts: they are saved on disk, last until their deadline, and bring blocks to
// the tier where they are pinned.
#include "server/verbs/pin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/instances/block_selection.h"
#include "tests/server/verbs/disk_process.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Process = testing::DiskProcess;
using testing::StoreFixture;
using testing::TestVariant;
using namespace std::chrono_literals;

using testing::kNow_ms;
constexpr uint32_t kBlockBytes = Process::kBlockBytes;

class PinVerbTest : public ::testing::Test {
 protected:
  void Start(uint64_t now_ms = kNow_ms) {
    process_.reset();
    process_.emplace(medium_, now_ms);
  }
  MemoryDiskTier::Medium medium_;
  std::optional<Process> process_;
};

TEST_F(PinVerbTest, PinsOutliveTheProcessUntilTheirDeadline) {
  Start();
  const std::vector<PinKey> keys = {process_->Key(process_->Put(1)),
                                    process_->Key(process_->Put(2), Tier::kDisk)};
  EXPECT_THAT(process_->Pin({keys[0]}, kNow_ms + 1'000), ElementsAre(BlockStatus::kOk));
  EXPECT_THAT(process_->Pin({keys[1]}, kNow_ms + 2'000), ElementsAre(BlockStatus::kPending));
  Start(kNow_ms + 1'500);
  process_->keeper->Tick(process_->clock.Now());
  EXPECT_THAT(process_->f.store().pins().All(),
              ElementsAre(larder::Pin{"router", keys[1], kNow_ms + 2'000}));
  process_->now_ms = kNow_ms + 2'000;
  process_->keeper->Tick(process_->clock.Now());
  EXPECT_EQ(process_->f.store().pins().size(), 0u);
  EXPECT_EQ(process_->counters.pins_expired.value(), 2u);
  Start();
  EXPECT_EQ(process_->loaded, 0u) << "an expired pin stays forgotten even if the clock goes back";
}

TEST_F(PinVerbTest, UnpinnedBlocksAreForgotten) {
  Start();
  const PinKey key = process_->Key(process_->Put(1));
  EXPECT_THAT(process_->Pin({key}, kNow_ms + 1'000), ElementsAre(BlockStatus::kOk));
  EXPECT_THAT(process_->Unpin({key}), ElementsAre(BlockStatus::kOk));
  EXPECT_THAT(process_->Unpin({key}), ElementsAre(BlockStatus::kMissing));
  Start();
  EXPECT_EQ(process_->loaded, 0u);
}

TEST_F(PinVerbTest, AFailedWriteOfAPinIsReported) {
  Start();
  const PinKey key = process_->Key(process_->Put(1));
  process_->tier.fails = true;
  absl::Status status;
  EXPECT_THAT(process_->Pin({key}, kNow_ms + 1'000, &status), ElementsAre(BlockStatus::kOk));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(process_->counters.pin_writes_failed.value(), 1u);
  process_->tier.fails = false;
  EXPECT_THAT(process_->Pin({key}, kNow_ms + 1'000), ElementsAre(BlockStatus::kOk))
      << "a repeated call succeeds";
  Start();
  EXPECT_EQ(process_->loaded, 1u);
}

// A repeated request is not answered OK while the disk still has the pins.
TEST_F(PinVerbTest, AFailedUnpinIsRetriedOnDisk) {
  Start();
  const PinKey key = process_->Key(process_->Put(1));
  EXPECT_THAT(process_->Pin({key}, kNow_ms + 1'000), ElementsAre(BlockStatus::kOk));
  process_->tier.fails = true;
  absl::Status status;
  const auto unpin_all = [&] {
    return Process::Asked(&status, [&](PinVerb::Answer answer) {
      process_->keeper->UnpinAll("router", std::move(answer));
    });
  };
  EXPECT_THAT(unpin_all(), ElementsAre(BlockStatus::kOk));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(unpin_all(), IsEmpty());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  process_->tier.fails = false;
  EXPECT_TRUE(Eventually([&] {
    size_t facts = 0;
    process_->disk.ForEachFact([&](const std::string&, const std::string&) { ++facts; });
    return facts == 0;
  })) << "the daemon retries without a further request";
}

// Unpinning keys that are not pinned writes nothing to disk.
TEST_F(PinVerbTest, OnlyChangedPinsAreWritten) {
  Start();
  std::vector<PinKey> keys(1'000, process_->Key(Digest{}));
  for (size_t i = 0; i < keys.size(); ++i) std::memcpy(keys[i].digest.bytes.data(), &i, sizeof i);
  EXPECT_THAT(process_->Unpin(keys), Each(BlockStatus::kMissing));
  EXPECT_EQ(process_->tier.writes, 0u);
  const PinKey key = process_->Key(process_->Put(1));
  EXPECT_THAT(process_->Pin({key}, kNow_ms + 1'000), ElementsAre(BlockStatus::kOk));
  EXPECT_EQ(process_->tier.writes, 1u);
}

// A block that an earlier process had in HOST for a pin returns to HOST without a request.
TEST_F(PinVerbTest, BlocksAreBroughtToTheTierWhereTheyArePinned) {
  Start();
  std::vector<PinKey> keys;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    const Digest digest = process_->Put(seed);
    process_->work->spiller().Offer(SessionId{1}, process_->f.variant(), digest);
    keys.push_back(process_->Key(digest));
  }
  ASSERT_TRUE(process_->work->spiller().WaitIdle(std::chrono::steady_clock::now() + 20s));
  EXPECT_THAT(process_->Pin(keys, kNow_ms + 1'000'000), Each(BlockStatus::kOk));
  Start();
  EXPECT_EQ(process_->f.store().stats().disk_only, keys.size());
  EXPECT_TRUE(Eventually([&] {
    process_->keeper->Tick(process_->clock.Now());
    return process_->f.store().stats().disk_only == 0;
  }));
}

TEST_F(PinVerbTest, WithoutADiskPinsEndWithTheProcess) {
  StoreFixture f;
  Counters counters;
  PinVerb keeper(f.store(), {}, counters, [] { return kNow_ms; });
  EXPECT_FALSE(keeper.durable());
  Digest digest;
  ASSERT_EQ(f.Put(Digest{}, 1, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
  const PinKey key{f.variant(), digest, Tier::kHost};
  bool answered = false;
  keeper.Pin("router", {&key, 1}, kNow_ms + 1, [&](const absl::Status& status, auto statuses) {
    EXPECT_TRUE(status.ok());
    EXPECT_THAT(statuses, ElementsAre(BlockStatus::kOk));
    answered = true;
  });
  EXPECT_TRUE(answered);
  keeper.UnpinAll("router", [&](const absl::Status&, auto statuses) {
    EXPECT_THAT(statuses, ElementsAre(BlockStatus::kOk));
  });
  EXPECT_EQ(f.store().pins().size(), 0u);
}

// ---- Which blocks a selection means.

TEST(BlockSelection, AChainIsTheBlocksOfEachVariant) {
  StoreFixture f;  // with 16 tokens per block
  SteadyClock clock;
  InstanceTable instances(f.store(), clock, {{Tier::kHost, 1e9}});
  const std::vector<VariantSpec> variants = {TestVariant(16), TestVariant(32)};
  const auto registered = instances.Register("engine", {}, variants);
  ASSERT_TRUE(registered.ok()) << registered.status();
  const std::vector<uint32_t> tokens(16 * 5 + 3, 7);
  wire::BlockSelection selection;
  const auto selected = Select(selection, Digest{}, tokens, instances, f.store());
  ASSERT_TRUE(selected.ok()) << selected.status();
  EXPECT_EQ(selected->names, Chain(Digest{}, tokens));
  ASSERT_EQ(selected->blocks.size(), 5u + 2u);
  std::vector<BlockStatus> statuses;
  for (const SelectedBlocks::Block& block : selected->blocks)
    statuses.push_back(block.variant == registered->front() ? BlockStatus::kOk
                                                            : BlockStatus::kPending);
  std::vector<BlockStatus> answers;
  for (const wire::BlockAnswer& answer : AnswersOf(*selected, statuses))
    answers.push_back(answer.status);
  using enum BlockStatus;
  EXPECT_THAT(answers, ElementsAre(kOk, kPending, kOk, kPending, kOk));
  selection.variants = {variants[1].Id()};
  EXPECT_EQ(Select(selection, Digest{}, tokens, instances, f.store())->names.size(), 2u);
}

TEST(BlockSelection, HasALimit) {
  StoreFixture f;
  SteadyClock clock;
  InstanceTable instances(f.store(), clock, {{Tier::kHost, 1e9}});
  std::vector<VariantSpec> variants;
  for (uint32_t layers = 1; layers <= 9; ++layers) variants.push_back(TestVariant(16, layers));
  ASSERT_TRUE(instances.Register("engine", {}, variants).ok());
  wire::BlockSelection selection;
  selection.digests.resize(8'192);
  EXPECT_TRUE(absl::IsInvalidArgument(Select(selection, {}, {}, instances, f.store()).status()));
  selection.engine_id = "unknown";
  EXPECT_TRUE(Select(selection, {}, {}, instances, f.store())->blocks.empty());
}

}  // namespace
}  // namespace larder
