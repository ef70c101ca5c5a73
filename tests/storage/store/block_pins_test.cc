#include "storage/store/block_pins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/storage/store/store_fixture.h"

namespace larder::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kLater_ms = 1'000'000;
constexpr uint32_t kBlockBytes = 256 << 10;

bool OfA(std::string_view owner, const PinKey&) { return owner == "a"; }

// A pool of 32 blocks, half of which may be pinned.
class BlockPinsTest : public ::testing::Test {
 protected:
  ~BlockPinsTest() override { store().CheckInvariants(); }
  [[nodiscard]] BlockStore& store() { return fixture_.store(); }
  [[nodiscard]] BlockPins& pins() { return store().pins(); }
  // Puts block `number`, which is a chain of its own.
  Digest Put(uint32_t number) {
    Digest digest;
    EXPECT_EQ(fixture_.Put(Digest{}, number, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
    return digest;
  }
  // Puts many blocks, so that every block that may be evicted is.
  void Churn() {
    for (int i = 0; i < 320; ++i) Put(next_++);
  }
  [[nodiscard]] PinKey Key(const Digest& digest, Tier tier = Tier::kHost) const {
    return {fixture_.variant(), digest, tier};
  }
  [[nodiscard]] bool InHost(const Digest& digest) {
    BlockIndex::Presence presence;
    store().index().Lookup(fixture_.variant(), {&digest, 1}, {&presence, 1});
    return (presence.tiers & 1u << static_cast<int>(Tier::kHost)) != 0;
  }

  StoreFixture fixture_;
  uint32_t next_ = 1'000;
};

TEST_F(BlockPinsTest, KeepABlockUntilItsLastOwnerUnpinsIt) {
  const Digest pinned = Put(1), other = Put(2);
  for (const char* owner : {"a", "b", "a"})
    EXPECT_EQ(pins().Add(owner, Key(pinned), kLater_ms), BlockStatus::kOk);
  EXPECT_EQ(pins().Count(Key(pinned)), 2u);
  Churn();
  EXPECT_TRUE(InHost(pinned));
  EXPECT_FALSE(InHost(other));
  EXPECT_TRUE(pins().Remove("a", Key(pinned)));
  EXPECT_FALSE(pins().Remove("a", Key(pinned))) << "a pin can be removed only once";
  Churn();
  EXPECT_TRUE(InHost(pinned));
  EXPECT_TRUE(pins().Remove("b", Key(pinned)));
  Churn();
  EXPECT_FALSE(InHost(pinned));
}

// Half of the pool is 16 blocks: the first user gets 12 of them, the next 3, and an operator the
// rest.
TEST_F(BlockPinsTest, AUserLeavesCapacityToOthers) {
  const auto pin_all = [&](std::string_view owner) {
    int pinned = 0;
    for (int i = 0; i < 16; ++i)
      pinned += pins().Add(owner, Key(Put(next_++)), kLater_ms) == BlockStatus::kOk;
    return pinned;
  };
  EXPECT_EQ(pin_all("uid:7/a"), 12);
  EXPECT_EQ(pin_all("uid:7/b"), 0) << "another owner name of the same user shares its limit";
  EXPECT_EQ(pin_all("uid:8/a"), 3);
  EXPECT_EQ(pin_all("router"), 1);
}

TEST_F(BlockPinsTest, PinsEndAtTheirDeadline) {
  const Digest early = Put(1), late = Put(2);
  EXPECT_EQ(pins().Add("a", Key(early), 100), BlockStatus::kOk);
  EXPECT_EQ(pins().Add("a", Key(late), 200), BlockStatus::kOk);
  EXPECT_THAT(pins().Expire(100, 10), ElementsAre(Pin{"a", Key(early), 100}));
  Churn();
  EXPECT_FALSE(InHost(early));
  EXPECT_TRUE(InHost(late));
  EXPECT_THAT(pins().RemoveIf(OfA), ElementsAre(Pin{"a", Key(late), 200}));
  EXPECT_THAT(pins().RemoveIf(OfA), IsEmpty());
  EXPECT_EQ(store().stats().pinned_host, ByteCount(0));
}

TEST_F(BlockPinsTest, AddAnswersWhetherTheBlockIsInTheTier) {
  const Digest here = Put(1);
  EXPECT_EQ(pins().Add("a", Key(Digest{}), kLater_ms), BlockStatus::kMissing);
  EXPECT_EQ(pins().size(), 0u);
  EXPECT_EQ(pins().Add("a", Key(here, Tier::kDisk), kLater_ms), BlockStatus::kPending);
  Churn();
  EXPECT_TRUE(InHost(here)) << "the block must stay in HOST until it is on disk";
  const EntryRef held = store().HoldUntouched(fixture_.variant(), here).ref;
  EXPECT_EQ(store().SetOnDisk(held, 7), 0u);
  store().Unhold({&held, 1});
  Churn();
  EXPECT_FALSE(InHost(here));
  EXPECT_EQ(store().EvictFromDisk(MiB(1)), MiB(1)) << "no pinned block may be evicted";
  EXPECT_EQ(pins().Add("a", Key(here), kLater_ms), BlockStatus::kPending);
  EXPECT_EQ(store().stats().pinned_host, ByteCount(kBlockBytes));
}

TEST_F(BlockPinsTest, PinsLeaveHalfOfThePoolUnpinned) {
  std::vector<Digest> blocks;
  for (uint32_t i = 0; i < 20; ++i) blocks.push_back(Put(i));
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(pins().Add("a", Key(blocks[i]), kLater_ms),
              i < 16 ? BlockStatus::kOk : BlockStatus::kFull);
  }
  EXPECT_EQ(pins().Add("b", Key(blocks[0]), kLater_ms), BlockStatus::kOk)
      << "a second pin of a block takes no further bytes";
  EXPECT_EQ(store().stats().pinned_host, MiB(4));
  EXPECT_TRUE(pins().Remove("a", Key(blocks[1])));
  EXPECT_EQ(pins().Add("a", Key(blocks[19]), kLater_ms), BlockStatus::kOk);
  Churn();
}

// A damaged block is gone, but a block that is computed again under its name is pinned like the old
// one.
TEST_F(BlockPinsTest, PinsApplyToABlockThatReturnsUnderItsName) {
  const Digest pinned = Put(1);
  EXPECT_EQ(pins().Add("a", Key(pinned), kLater_ms), BlockStatus::kOk);
  EXPECT_TRUE(store().Drop(fixture_.variant(), pinned));
  EXPECT_EQ(store().stats().pinned_host, ByteCount(0));
  EXPECT_EQ(Put(1), pinned);
  EXPECT_EQ(store().stats().pinned_host, ByteCount(kBlockBytes));
  Churn();
  EXPECT_TRUE(InHost(pinned));
}

// An earlier process had the pins.  Their blocks are found later.
TEST_F(BlockPinsTest, PinsAreRestoredBeforeTheirBlocks) {
  Digest name;
  name.bytes.fill(std::byte{7});
  EXPECT_TRUE(pins().Restore("a", Key(name), kLater_ms));
  const Digest variant = store().index().VariantId(fixture_.variant());
  EXPECT_NE(store().EnterFromDisk(variant, name, Digest{}, 5, 64), EntryRef{});
  EXPECT_EQ(store().EvictFromDisk(MiB(1)), MiB(1)) << "no pinned block may be evicted";
  EXPECT_EQ(store().stats().pinned_host, ByteCount(kBlockBytes));
  EXPECT_THAT(pins().All(), ElementsAre(Pin{"a", Key(name), kLater_ms}));
}

// One thread pins a name while another publishes it.  At least one of them sees the other, even if
// this is the first pin of all.
TEST_F(BlockPinsTest, PinsAreAppliedToBlocksThatEnterAtTheSameTime) {
  const Digest name = Chain(Digest{}, TestTokens(1)).back();
  std::atomic<int> round{0}, pinned{0};
  std::thread pinner([&] {
    for (int i = 1; i <= 3'000; ++i) {
      while (round < i) std::this_thread::yield();
      EXPECT_TRUE(pins().Restore("a", Key(name), kLater_ms));
      pinned = i;
    }
  });
  for (int i = 1; i <= 3'000; ++i) {
    round = i;
    EXPECT_EQ(Put(1), name);
    while (pinned < i) std::this_thread::yield();
    EXPECT_EQ(store().stats().pinned_host, ByteCount(kBlockBytes)) << i;
    EXPECT_TRUE(store().Drop(fixture_.variant(), name));
    EXPECT_TRUE(pins().Remove("a", Key(name)));
  }
  pinner.join();
}

// As after a restart with a smaller pool.
TEST_F(BlockPinsTest, RestoredPinsBeyondTheLimitKeepNoBlocks) {
  std::vector<Digest> blocks;
  for (uint32_t i = 0; i < 20; ++i) {
    blocks.push_back(Chain(Digest{}, TestTokens(i)).back());
    EXPECT_TRUE(pins().Restore("a", Key(blocks.back()), kLater_ms));
  }
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(Put(i), blocks[i]);
  EXPECT_EQ(store().stats().pinned_host, MiB(4));
  Churn();
  EXPECT_EQ(std::count_if(blocks.begin(), blocks.end(), [&](const Digest& d) { return InHost(d); }),
            16);
}

// The limit applies to the block, whichever of its pins comes first.
TEST_F(BlockPinsTest, APinOfABlockThatAnotherPinDoesNotKeepIsRefusedOrKeepsIt) {
  std::vector<Digest> blocks;
  for (uint32_t i = 0; i < 17; ++i) {
    blocks.push_back(Chain(Digest{}, TestTokens(i)).back());
    EXPECT_TRUE(pins().Restore("a", Key(blocks.back()), kLater_ms));
    EXPECT_EQ(Put(i), blocks.back());
  }
  const Digest last = blocks.back();
  EXPECT_EQ(pins().Add("b", Key(last), kLater_ms), BlockStatus::kFull);
  EXPECT_EQ(pins().Count(Key(last)), 1u);
  EXPECT_EQ(pins().Add("a", Key(last), 2 * kLater_ms), BlockStatus::kFull);
  EXPECT_EQ(pins().DeadlineOf("a", Key(last)), 2 * kLater_ms) << "the pin exists, so it is renewed";
  EXPECT_TRUE(pins().Remove("a", Key(blocks.front())));
  EXPECT_EQ(pins().Add("a", Key(last), kLater_ms), BlockStatus::kOk);
  EXPECT_EQ(pins().Add("b", Key(last), kLater_ms), BlockStatus::kOk);
  Churn();
  EXPECT_TRUE(InHost(last));
}

TEST_F(BlockPinsTest, PinsOnDiskCountInHostUntilTheBlockIsOnDisk) {
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(pins().Add("a", Key(Put(i), Tier::kDisk), kLater_ms),
              i < 16 ? BlockStatus::kPending : BlockStatus::kFull);
  }
  Churn();
}

TEST_F(BlockPinsTest, DeadlinesOfPinsWithoutAnOwnerOnlyGrow) {
  const PinKey key = Key(Put(1));
  for (const uint64_t deadline_ms : {200, 100}) {
    EXPECT_EQ(pins().Add("", key, deadline_ms), BlockStatus::kOk);
    EXPECT_EQ(pins().DeadlineOf("", key), 200u);
  }
  EXPECT_EQ(pins().Add("a", key, 200), BlockStatus::kOk);
  EXPECT_EQ(pins().Add("a", key, 100), BlockStatus::kOk);
  EXPECT_EQ(pins().DeadlineOf("a", key), 100u);
}

}  // namespace
}  // namespace larder::testing
