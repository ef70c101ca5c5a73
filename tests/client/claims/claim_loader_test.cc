// ClaimLoader over blocks in this process.
#include "client/claims/claim_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "client/engine/linked_store.h"
#include "client/engine/loopback_store.h"
#include "cuda/device.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

class ClaimLoaderTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kPages = 64, kLayers = 3, kPageBytes = 512, kPageTokens = 16;

  ClaimLoaderTest() {
    for (uint32_t layer = 0; layer < kLayers; ++layer)
      bases_.push_back(memory_->address() + uint64_t{layer} * kPages * kPageBytes);
    const PagedLayout pages =
        PagedLayout::Opaque(bases_, kPageBytes, kPageBytes, kPages, kPageTokens);
    auto store = LoopbackStore::Make(*device_, pages, PayloadLayout::Opaque(pages), blocks_);
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    for (uint32_t page = 0; page < kPages; ++page) Fill(page, 0);
  }
  void Load(const ClaimLoader::Options& options) {
    loader_ = std::make_unique<ClaimLoader>(*store_, worker_, options);
  }
  // Puts the store behind a link over which a block takes so long.
  void Link(milliseconds block) {
    const ByteCount bytes(uint64_t{kLayers} * kPageBytes);
    const double seconds = std::chrono::duration<double>(block).count();
    auto link = std::make_shared<TokenBucket>(static_cast<double>(bytes.value()) / seconds);
    store_ = std::make_unique<LinkedStore>(std::move(store_), std::move(link), bytes, kLayers);
  }
  static Digest DigestOf(uint32_t number) {
    Digest digest;
    std::memcpy(digest.bytes.data(), &number, sizeof number);
    return digest;
  }
  // Stores a block whose bytes are all `number`.
  void Store(uint32_t number) {
    ASSERT_TRUE(blocks_->Add(DigestOf(number),
                             std::vector(kLayers * kPageBytes, static_cast<std::byte>(number))));
  }
  void Fill(uint32_t page, uint32_t number) {
    for (const uint64_t base : bases_)
      std::memset(reinterpret_cast<void*>(base + uint64_t{page} * kPageBytes),
                  static_cast<int>(number), kPageBytes);
  }
  [[nodiscard]] bool Has(uint32_t page, uint32_t number) const {
    const std::vector right(kPageBytes, static_cast<std::byte>(number));
    return std::ranges::all_of(bases_, [&](uint64_t base) {
      return std::memcmp(reinterpret_cast<void*>(base + uint64_t{page} * kPageBytes), right.data(),
                         kPageBytes) == 0;
    });
  }
  [[nodiscard]] std::optional<ClaimId> Place(uint32_t number, uint32_t page, uint64_t after_ms) {
    return scheduler_.Place({.digest = DigestOf(number),
                             .page = page,
                             .promise = {1 + number % 3},
                             .deadline_unix_ms = UnixMilliseconds() + after_ms});
  }
  [[nodiscard]] BlockStatus Await(ClaimId claim) {
    BlockStatus status = BlockStatus::kPending;
    EXPECT_TRUE(Eventually([&] {
      for (const ClaimBoard::Ended& ended : scheduler_.TakeEnded())
        if (ended.id == claim) status = ended.status;
      return status != BlockStatus::kPending;
    }));
    return status;
  }

  const std::unique_ptr<Device> device_ = OpenDevice(DeviceWish::kHost).value().device;
  const std::unique_ptr<DeviceMemory> memory_ =
      device_->Allocate(ByteCount(uint64_t{kLayers} * kPages * kPageBytes)).value();
  std::vector<uint64_t> bases_;
  const std::shared_ptr<LoopbackBlocks> blocks_ = std::make_shared<LoopbackBlocks>();
  std::unique_ptr<PageStore> store_;
  const std::unique_ptr<DeviceMemory> board_ =
      device_->Allocate(ByteCount(ClaimBoard::kBytes)).value();
  ClaimBoard scheduler_{Board()}, worker_{Board()};
  std::unique_ptr<ClaimLoader> loader_;  // uses the members above

 private:
  [[nodiscard]] std::span<std::byte> Board() const {
    auto* const at = reinterpret_cast<std::byte*>(board_->address());
    std::memset(at, 0, ClaimBoard::kBytes);
    return {at, ClaimBoard::kBytes};
  }
};

TEST_F(ClaimLoaderTest, LoadsWhatIsThereAndSaysWhatIsNot) {
  Load({});
  ASSERT_NO_FATAL_FAILURE(Store(1));
  EXPECT_EQ(Await(*Place(1, 5, 10'000)), BlockStatus::kOk);
  EXPECT_TRUE(Has(5, 1));
  EXPECT_EQ(Await(*Place(2, 6, 10'000)), BlockStatus::kMissing);
  EXPECT_TRUE(Has(6, 0));
  EXPECT_EQ(Await(*Place(1, kPages, 10'000)), BlockStatus::kInvalid) << "there is no such page";
  const ClaimLoader::Stats stats = loader_->stats();
  EXPECT_EQ(stats.loaded, 1u);
  EXPECT_EQ(stats.failed, 2u);
}

TEST_F(ClaimLoaderTest, FetchesNothingAfterTheDeadline) {
  ASSERT_NO_FATAL_FAILURE(Store(1));
  const auto late = Place(1, 5, 0);
  Load({});
  EXPECT_EQ(Await(*late), BlockStatus::kCancelled);
  EXPECT_TRUE(Has(5, 0));
}

// Over a slow link a claim can be withdrawn as long as its bytes have not arrived.
TEST_F(ClaimLoaderTest, AClaimThatIsWithdrawnOnTheWayIsNotWritten) {
  Link(milliseconds(60'000));
  Load({});
  ASSERT_NO_FATAL_FAILURE(Store(1));
  // A claim that is withdrawn before a loader has taken it counts as nothing.
  EXPECT_TRUE(Eventually([&] {
    const auto claim = Place(1, 5, 600'000);
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_TRUE(scheduler_.Withdraw(*claim));
    EXPECT_EQ(Await(*claim), BlockStatus::kCancelled);
    return loader_->stats().cancelled > 0;
  }));
  EXPECT_TRUE(Has(5, 0));
  EXPECT_EQ(loader_->stats().cancelled, 1u);
}

TEST_F(ClaimLoaderTest, BytesOfAClaimThatWasWithdrawnAreNotAwaited) {
  Link(milliseconds(60'000));
  Load({});
  ASSERT_NO_FATAL_FAILURE(Store(1));
  const auto claim = Place(1, 5, 600'000);
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_TRUE(scheduler_.Withdraw(*claim));
  EXPECT_EQ(Await(*claim), BlockStatus::kCancelled);
}

TEST_F(ClaimLoaderTest, EndsWhatItHasTakenWhenItIsDestroyed) {
  Link(milliseconds(60'000));
  Load({.at_once = 4});
  ASSERT_NO_FATAL_FAILURE(Store(1));
  for (uint32_t page = 0; page < 8; ++page) ASSERT_TRUE(Place(1, page, 100'000));
  std::this_thread::sleep_for(milliseconds(20));
  const TimePoint begun = SteadyNow();
  loader_.reset();
  EXPECT_LT(SteadyNow() - begun, std::chrono::seconds(20));
  const size_t ended = scheduler_.TakeEnded().size();
  EXPECT_EQ(scheduler_.open(), 8 - ended);
}

TEST_F(ClaimLoaderTest, EveryClaimEndsOnceWithTheRightBytes) {
  Load({.threads = 3, .at_once = 5});
  for (uint32_t number = 1; number <= 100; ++number) ASSERT_NO_FATAL_FAILURE(Store(number));
  std::mt19937 random(testing::TestSeed());
  std::vector<uint32_t> free;
  for (uint32_t page = 0; page < kPages; ++page) free.push_back(page);
  struct Open {
    uint32_t number = 0, page = 0;
    bool withdrawn = false;
  };
  std::map<ClaimId, Open> open;
  for (uint64_t left = testing::Scaled(20'000); left > 0 || !open.empty();) {
    for (; left > 0 && !free.empty(); --left) {
      const auto number = static_cast<uint32_t>(1 + random() % 110);  // some are missing
      const auto claim = Place(number, free.back(), 60'000);
      ASSERT_TRUE(claim);
      open[*claim] = {.number = number, .page = free.back()};
      free.pop_back();
      if (random() % 4 == 0) open[*claim].withdrawn = scheduler_.Withdraw(*claim);
    }
    for (const ClaimBoard::Ended& ended : scheduler_.TakeEnded()) {
      const auto found = open.find(ended.id);
      ASSERT_NE(found, open.end());
      const Open& one = found->second;
      const bool right = ended.status == BlockStatus::kOk;
      EXPECT_EQ(right, !one.withdrawn && one.number <= 100);
      EXPECT_TRUE(Has(one.page, right ? one.number : 0));
      Fill(one.page, 0);
      free.push_back(one.page);
      open.erase(found);
    }
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace larder
