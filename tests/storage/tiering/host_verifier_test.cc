// The verifier finds damage in the pool even if no engine reads the block.
#include "storage/tiering/host_verifier.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "storage/codec/payload_codec.h"
#include "storage/spin_wait.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

using testing::StoreFixture;
using namespace std::chrono_literals;

class HostVerifierTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBytes = 200'000;

  void Start(const HostVerifier::Options& options) {
    verifier_.emplace(HostVerifier::Options{.bytes_per_s = options.bytes_per_s,
                                            .pause = options.pause,
                                            .warn =
                                                [this](const std::string& text) {
                                                  MutexLock lock(mu_);
                                                  said_.push_back(text);
                                                }},
                      f_.store());
  }
  static inline const HostVerifier::Options kFast = {.bytes_per_s = GiB(1), .pause = 1ms};
  // Waits until each block has been checked `more` more times.
  void AwaitWalks(uint64_t more) {
    const uint64_t from = verifier_->stats().walks;
    ASSERT_TRUE(Eventually([&] { return verifier_->stats().walks > from + more; }));
  }
  Digest Put(uint32_t seed) {
    Digest digest;
    EXPECT_EQ(f_.Put({}, seed, kBytes, static_cast<std::byte>(seed), &digest), BlockStatus::kOk);
    return digest;
  }
  // Flips one bit of the block in the pool.
  void Flip(const Digest& digest, uint32_t at) {
    const BlockIndex::Held held = f_.store().HoldUntouched(f_.variant(), digest);
    f_.store().Bytes(held.extent)[at] ^= std::byte{4};
    f_.store().Unhold({&held.ref, 1});
  }
  [[nodiscard]] bool IsThere(const Digest& digest) {
    BlockIndex::Presence presence;
    f_.store().index().Lookup(f_.variant(), {&digest, 1}, {&presence, 1});
    return presence.tiers != 0;
  }
  [[nodiscard]] std::vector<std::string> said() {
    MutexLock lock(mu_);
    return said_;
  }

  StoreFixture f_{MiB(32), MiB(2)};
  Mutex mu_;
  std::vector<std::string> said_ LARDER_GUARDED_BY(mu_);
  std::optional<HostVerifier> verifier_;
};

TEST_F(HostVerifierTest, FindsAFlippedBitAndNothingElse) {
  std::vector<Digest> digests;
  for (uint32_t seed = 1; seed <= 20; ++seed) digests.push_back(Put(seed));
  Start(kFast);
  ASSERT_NO_FATAL_FAILURE(AwaitWalks(1));
  EXPECT_EQ(verifier_->stats().damaged, 0u);
  EXPECT_GE(verifier_->stats().blocks, 20u);
  Flip(digests[7], kBytes - 1);
  ASSERT_NO_FATAL_FAILURE(AwaitWalks(1));
  EXPECT_EQ(verifier_->stats().damaged, 1u);
  EXPECT_EQ(f_.store().stats().damaged, 1u);
  for (size_t i = 0; i < digests.size(); ++i) EXPECT_EQ(IsThere(digests[i]), i != 7) << i;
  ASSERT_EQ(said().size(), 1u);
  EXPECT_NE(said()[0].find(digests[7].Hex()), std::string::npos) << said()[0];
  verifier_.reset();
  f_.store().CheckInvariants();
}

// The verifier takes the block to be as its writer left it, and from then on it must not change.
TEST_F(HostVerifierTest, HashesBlocksThatTheirWriterDidNot) {
  const ByteCount size(kBytes);
  auto room = f_.store().Reserve({&size, 1}, MiB(1));
  ASSERT_EQ(room.status, BlockStatus::kOk);
  const std::vector<uint32_t> tokens = testing::TestTokens(1);
  const SegmentTable table = UniformTable(1, kBytes);
  const Digest digest = Chain(Digest{}, tokens).back();
  ASSERT_EQ(f_.store().Publish(room.reservation, 0, {f_.variant(), digest, {}, tokens, &table}),
            BlockStatus::kOk);
  Start(kFast);
  ASSERT_NO_FATAL_FAILURE(AwaitWalks(1));
  EXPECT_TRUE(IsThere(digest));
  Flip(digest, 0);
  ASSERT_NO_FATAL_FAILURE(AwaitWalks(1));
  EXPECT_FALSE(IsThere(digest));
}

TEST_F(HostVerifierTest, ChecksEncodedBlocksWithoutDecodingThem) {
  const Digest digest = Put(1);
  const BlockIndex::Held held = f_.store().HoldUntouched(f_.variant(), digest);
  PayloadCodec codec;
  std::vector<std::byte> to(RoundUp(kBytes, kPageBytes));
  const auto table = codec.Encode(Codec::kLossless, f_.store().Bytes(held.extent).first(kBytes),
                                  held.metadata->Table(), 2, to);
  ASSERT_TRUE(table);
  const ByteCount bytes = table->PayloadBytes();
  auto room = f_.store().Reserve({&bytes, 1}, MiB(1));
  ASSERT_EQ(room.status, BlockStatus::kOk);
  std::copy_n(to.begin(), bytes.value(), f_.store().Bytes(room.reservation.extent(0)).begin());
  ASSERT_TRUE(f_.store().ReplaceInHost(
      held.ref, room.reservation,
      BlockMetadata::Make(held.metadata->parent(), held.metadata->tokens(), *table)));
  f_.store().Unhold({&held.ref, 1});
  Start(kFast);
  ASSERT_NO_FATAL_FAILURE(AwaitWalks(1));
  EXPECT_TRUE(IsThere(digest));
  Flip(digest, static_cast<uint32_t>(bytes.value() / 2));
  ASSERT_NO_FATAL_FAILURE(AwaitWalks(1));
  EXPECT_FALSE(IsThere(digest));
}

// A check does not count as a use: the block that would have left first still does.
TEST_F(HostVerifierTest, LeavesTheOrderOfEviction) {
  std::vector<Digest> digests;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    f_.clock().Advance(10s);
    digests.push_back(Put(seed));
  }
  Start(kFast);
  f_.clock().Advance(10s);
  ASSERT_NO_FATAL_FAILURE(AwaitWalks(3));
  verifier_.reset();
  std::vector<Digest> gone;
  while (const auto evicted = f_.store().index().EvictOne(1'000)) gone.push_back(evicted->digest);
  StoreFixture untouched{MiB(32), MiB(2)};
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    untouched.clock().Advance(10s);
    ASSERT_EQ(untouched.Put({}, seed, kBytes, std::byte{1}), BlockStatus::kOk);
  }
  std::vector<Digest> expected;
  while (const auto evicted = untouched.store().index().EvictOne(1'000))
    expected.push_back(evicted->digest);
  EXPECT_EQ(gone, expected);
}

// The stated time is that of one walk and one pause.
TEST_F(HostVerifierTest, StatesTheTimeOfAWalkAndAPause) {
  const HostVerifier::Options options = {.bytes_per_s = MiB(16), .pause = 20s};
  const auto within = [&](ByteCount stored, uint64_t blocks) {
    return HostVerifier::FindsWithin(options, stored, blocks);
  };
  EXPECT_EQ(within(GiB(8), 0), 512s + 20s + VerifyLoop::kOwedMax);
  // However small the blocks are.
  EXPECT_EQ(within(ByteCount(0), 1'024), 4s + 20s + VerifyLoop::kOwedMax);
}

// Wherever the damage is in a walk and in a block, the next complete walk finds it.  The duration
// depends on what else the machine does, so it is printed and not checked.
TEST_F(HostVerifierTest, FindsDamageWithinOneMoreWalk) {
  std::mt19937 random(testing::TestSeed());
  std::vector<Digest> digests;
  for (uint32_t seed = 1; seed <= 100; ++seed) digests.push_back(Put(seed));
  const HostVerifier::Options options = {.bytes_per_s = MiB(16), .pause = 200ms};
  const Duration stated =
      HostVerifier::FindsWithin(options, ByteCount(digests.size() * kBytes), digests.size());
  Start(options);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Eventually([&] { return verifier_->stats().walks >= 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1000));  // anywhere in a walk
    const Digest& victim = digests[static_cast<size_t>(i) * 30 + random() % 30];
    const uint32_t at = static_cast<uint32_t>(random()) % kBytes;
    Flip(victim, at);
    const TimePoint from = std::chrono::steady_clock::now();
    const uint64_t ended = verifier_->stats().walks;  // another walk may be under way
    uint64_t walks = ended;
    ASSERT_TRUE(Eventually([&] {
      const uint64_t now = verifier_->stats().walks;
      if (!IsThere(victim)) return true;
      walks = now;  // walks that ended while the block was still there
      return false;
    }));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
    const std::chrono::duration<double> limit = stated;
    std::printf("byte %u flipped: found after %.2f s, stated %.2f s\n", at, took.count(),
                limit.count());
    EXPECT_LE(walks, ended + 1);
  }
}

}  // namespace
}  // namespace larder
