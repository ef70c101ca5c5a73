// What every DiskTier must do, as disk_tier.h says.
//
// A test program instantiates the suite with its DiskTierMaker, which can make tiers one after
// another over the same medium, like processes that use one disk in turn.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/test_scale.h"

namespace larder::testing {

class DiskTierMaker {
 public:
  static constexpr ByteCount kLimit = MiB(128);
  virtual ~DiskTierMaker() = default;
  // Makes a tier over what the previous one left.  REQUIRES: the previous tier is destroyed.
  [[nodiscard]] virtual std::unique_ptr<DiskTier> Make() = 0;
};

class DiskTierContract
    : public ::testing::TestWithParam<std::function<std::unique_ptr<DiskTierMaker>()>> {
 protected:
  void SetUp() override { Reopen(); }

  // Opens the medium as the next process would.  The blocks that it reports are in entries_.
  void Reopen() {
    tier_.reset();
    tier_ = maker_->Make();
    entries_.clear();
    for (const DiskTier::Entry& entry : RecoverAll(*tier_)) entries_.emplace(entry.key, entry);
  }

  struct KeyLess {
    bool operator()(const BlockKey& a, const BlockKey& b) const {
      return std::pair(a.variant, a.digest) < std::pair(b.variant, b.digest);
    }
  };
  [[nodiscard]] std::optional<DiskTier::Description> Untold(const BlockKey& key) const {
    auto found = tier_->FindUntold(key);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *std::move(found) : std::nullopt;
  }

  std::unique_ptr<DiskTierMaker> maker_ = GetParam()();
  std::unique_ptr<DiskTier> tier_;
  std::map<BlockKey, DiskTier::Entry, KeyLess> entries_;
};

TEST_P(DiskTierContract, ReturnsBlocksThatWerePut) {
  const DiskBlock block(1, 16, 64 << 10);
  const DiskTier::PutResult put = PutOne(*tier_, block);
  ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
  EXPECT_NE(put.location, DiskLocation::kNone);
  EXPECT_TRUE(Has(*tier_, block, put.location));
  EXPECT_EQ(tier_->stats().blocks, 1u);
}

TEST_P(DiskTierContract, OnePutTakesBlocksOfAllSizes) {
  std::vector<DiskBlock> blocks;
  uint64_t number = 0;
  for (const uint32_t bytes : {1u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 300'000u}) {
    for (const uint32_t segments : {1u, 2u, 30u, 200u})
      if (uint64_t{bytes} * segments < 3'000'000) blocks.emplace_back(++number, segments, bytes);
  }
  std::vector<DiskTier::NewBlock> news;
  for (const DiskBlock& block : blocks) news.push_back(block.AsNew());
  std::vector<DiskTier::PutResult> results(news.size());
  tier_->Put(news, results);
  for (size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_EQ(results[i].status, DiskTier::PutStatus::kOk) << i;
    EXPECT_TRUE(Has(*tier_, blocks[i], results[i].location)) << i;
  }
}

TEST_P(DiskTierContract, ReturnsRangesOfSegments) {
  const DiskBlock block(1, 30, 5000);
  const DiskTier::PutResult put = PutOne(*tier_, block);
  for (const auto& [first, count] : {std::pair(0u, 1u), {0u, 7u}, {1u, 1u}, {13u, 9u}, {29u, 1u}}) {
    SegmentRange range;
    ASSERT_TRUE(block.header().table.Range(first, count, &range).ok());
    const Got got = GetRange(*tier_, {block.key(), put.location}, block.header(), range);
    ASSERT_EQ(got.status, DiskTier::GetStatus::kOk) << first;
    EXPECT_TRUE(std::equal(got.bytes.begin(), got.bytes.end(),
                           block.payload().begin() + static_cast<std::ptrdiff_t>(range.begin)));
  }
}

TEST_P(DiskTierContract, ReportsItsBlocksToTheNextProcess) {
  const DiskBlock a(1, 4, 70'000), b(2, 1, 100);
  ASSERT_EQ(PutOne(*tier_, a).status, DiskTier::PutStatus::kOk);
  ASSERT_EQ(PutOne(*tier_, b).status, DiskTier::PutStatus::kOk);
  Reopen();
  ASSERT_EQ(entries_.size(), 2u);
  const DiskTier::Entry& entry = entries_.at(a.key());
  EXPECT_EQ(entry.parent, a.header().parent);
  EXPECT_EQ(entry.payload_bytes, a.header().table.PayloadBytes());
  EXPECT_EQ(entry.raw_pages, PagesFor(entry.payload_bytes));
  EXPECT_GE(entry.disk_bytes, entry.payload_bytes);
  EXPECT_TRUE(Has(*tier_, a, entry.location));
  EXPECT_TRUE(Has(*tier_, b, entries_.at(b.key()).location));
  EXPECT_EQ(tier_->stats().blocks, 2u);
}

TEST_P(DiskTierContract, ReportsTheDecodedSizeOfEncodedBlocks) {
  constexpr uint32_t kRawBytes = 100'000;
  DiskBlock block(1, 4, 7'000);
  block.SetEncoded(kRawBytes);
  const DiskTier::PutResult put = PutOne(*tier_, block);
  ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
  const ByteCount used = tier_->stats().used;
  EXPECT_LT(used, ByteCount(kRawBytes)) << "the encoded size counts, not the decoded one";
  Reopen();
  const DiskTier::Entry& entry = entries_.at(block.key());
  EXPECT_EQ(entry.payload_bytes, block.header().table.PayloadBytes());
  EXPECT_EQ(entry.raw_pages, PagesFor(ByteCount(4 * RoundUp(kRawBytes, kSegmentAlign))));
  EXPECT_TRUE(Has(*tier_, block, entry.location));
  EXPECT_EQ(tier_->stats().used, used);
}

// As when a block is encoded or decoded on disk.
TEST_P(DiskTierContract, ABlockCanBeRewrittenUnderItsName) {
  const DiskBlock raw(1, 4, 70'000);
  DiskBlock smaller(1, 4, 7'000);
  smaller.SetEncoded(70'000);
  ASSERT_EQ(raw.key(), smaller.key());
  const DiskAddress former{raw.key(), PutOne(*tier_, raw).location};
  const ByteCount used = tier_->stats().used;
  const DiskTier::PutResult put = PutOne(*tier_, smaller);
  ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
  EXPECT_GT(tier_->stats().used, used) << "both records take space until the older one is erased";
  EraseOne(*tier_, former);
  EXPECT_LT(tier_->stats().used, used);
  EXPECT_TRUE(Has(*tier_, smaller, put.location));
  EXPECT_EQ(tier_->stats().blocks, 1u);
  Reopen();
  ASSERT_EQ(entries_.size(), 1u);
  EXPECT_TRUE(Has(*tier_, smaller, entries_.at(smaller.key()).location));
}

TEST_P(DiskTierContract, ErasedBlocksAreGone) {
  const DiskBlock a(1, 4, 70'000), b(2, 4, 70'000);
  const DiskAddress gone{a.key(), PutOne(*tier_, a).location};
  const DiskTier::PutResult stays = PutOne(*tier_, b);
  EraseOne(*tier_, gone);
  EXPECT_FALSE(DescribeOne(*tier_, gone));
  EXPECT_TRUE(Has(*tier_, b, stays.location));
  Reopen();
  EXPECT_EQ(entries_.size(), 1u);
  EXPECT_EQ(entries_.count(b.key()), 1u);
}

// A reader can continue.  A crash does not bring the block back, and its space is freed when it is
// erased.
TEST_P(DiskTierContract, ForgottenBlocksAreReadableUntilTheyAreErased) {
  const DiskBlock block(1, 4, 70'000), other(2, 4, 70'000);
  const DiskAddress forgotten{block.key(), PutOne(*tier_, block).location};
  const ByteCount used = tier_->stats().used;
  ASSERT_TRUE(tier_->Forget({&forgotten, 1}).ok());
  ASSERT_TRUE(tier_->SyncErasures().ok());
  const Got got = GetRange(*tier_, forgotten, block.header(), block.all());
  EXPECT_EQ(got.status, DiskTier::GetStatus::kOk);
  EXPECT_TRUE(std::ranges::equal(got.bytes, block.payload()));
  EXPECT_EQ(tier_->stats().used, used);
  const DiskTier::PutResult again = PutOne(*tier_, block);
  ASSERT_EQ(again.status, DiskTier::PutStatus::kOk);
  EXPECT_TRUE(Has(*tier_, block, again.location))
      << "the block must be readable after it is published again";
  EraseOne(*tier_, forgotten);
  EXPECT_TRUE(Has(*tier_, block, again.location));
  EXPECT_EQ(tier_->stats().used, used) << "the former record's space must be freed";
  const DiskAddress later{other.key(), PutOne(*tier_, other).location};
  ASSERT_TRUE(tier_->Forget({&later, 1}).ok());
  Reopen();
  ASSERT_EQ(entries_.size(), 1u);
  EXPECT_EQ(entries_.count(block.key()), 1u);
}

// As when a block was dropped, published again and spilled before the space of its former record
// was freed.
TEST_P(DiskTierContract, ErasingAnOlderCopyKeepsTheNewerOne) {
  const DiskBlock block(1, 4, 70'000);
  const DiskAddress older{block.key(), PutOne(*tier_, block).location};
  const DiskTier::PutResult newer = PutOne(*tier_, block);
  ASSERT_EQ(newer.status, DiskTier::PutStatus::kOk);
  EraseOne(*tier_, older);
  EXPECT_TRUE(Has(*tier_, block, newer.location));
  Reopen();
  ASSERT_EQ(entries_.size(), 1u);
  EXPECT_TRUE(Has(*tier_, block, entries_.at(block.key()).location));
}

// As when a block is dropped while it is read, and its name is given to other bytes: a start finds
// the newer record, whichever shard had the most space.
TEST_P(DiskTierContract, TheNewerRecordIsFoundEvenIfTheOlderIsNotErased) {
  constexpr uint64_t kNames = 8;
  for (uint64_t number = 1; number <= kNames; ++number) {
    for (const uint32_t segments : {4u, 3u, 2u})
      ASSERT_EQ(PutOne(*tier_, DiskBlock(number, segments, 50'000)).status,
                DiskTier::PutStatus::kOk);
  }
  tier_.reset();
  tier_ = maker_->Make();
  const std::vector<DiskTier::Entry> found = RecoverFirsts(*tier_);
  ASSERT_EQ(found.size(), kNames);
  for (const DiskTier::Entry& entry : found) {
    uint64_t number = 0;
    std::memcpy(&number, entry.key.digest.bytes.data(), sizeof number);
    EXPECT_TRUE(Has(*tier_, DiskBlock(number, 2, 50'000), entry.location)) << number;
  }
}

// There are so many copies that two lie in one shard.  Each frees its space, in whichever order
// they are erased.
TEST_P(DiskTierContract, EachErasedCopyFreesItsSpace) {
  constexpr size_t kCopies = 10;
  const DiskBlock block(1, 4, 70'000);
  const auto put = [&] {
    std::vector<DiskAddress> copies;
    for (size_t i = 0; i < kCopies; ++i)
      copies.push_back({block.key(), PutOne(*tier_, block).location});
    return copies;
  };
  std::vector<DiskAddress> copies = put();
  const DiskTier::Stats before = tier_->stats();
  EXPECT_EQ(before.blocks, kCopies);
  const DiskAddress newest = copies.back();
  copies.pop_back();
  ASSERT_TRUE(tier_->Erase(copies).ok());
  EXPECT_TRUE(Has(*tier_, block, newest.location));
  EXPECT_EQ(tier_->stats().blocks, 1u);
  EXPECT_EQ(tier_->stats().used.value(), before.used.value() / kCopies);
  EraseOne(*tier_, newest);
  EXPECT_EQ(tier_->stats().used, ByteCount(0));
  copies = put();
  for (size_t i = kCopies; i-- > 0;) EraseOne(*tier_, copies[i]);
  EXPECT_EQ(tier_->stats().blocks, 0u);
  EXPECT_EQ(tier_->stats().used, ByteCount(0));
}

// The space belongs to another record by now, whatever happened to the name that it had.
TEST_P(DiskTierContract, ErasingReusedSpaceIsANoOp) {
  const DiskBlock block(1, 4, 70'000);
  std::vector<DiskAddress> former;
  for (int i = 0; i < 10; ++i) former.push_back({block.key(), PutOne(*tier_, block).location});
  ASSERT_TRUE(tier_->Erase(former).ok());
  std::vector<std::pair<uint64_t, DiskLocation>> others;
  for (uint64_t number = 2; number <= 11; ++number)
    others.emplace_back(number, PutOne(*tier_, DiskBlock(number, 4, 70'000)).location);
  ASSERT_TRUE(tier_->Erase(former).ok());
  const DiskLocation again = PutOne(*tier_, block).location;
  std::erase_if(former, [&](const DiskAddress& address) { return address.location == again; });
  ASSERT_TRUE(tier_->Erase(former).ok());
  EXPECT_TRUE(Has(*tier_, block, again));
  EXPECT_EQ(tier_->stats().blocks, 11u);
  EXPECT_EQ(tier_->stats().used.value() % 11, 0u);
  for (const auto& [number, location] : others)
    EXPECT_TRUE(Has(*tier_, DiskBlock(number, 4, 70'000), location)) << number;
}

TEST_P(DiskTierContract, ErasingUnknownAddressesIsANoOp) {
  const DiskBlock block(1, 4, 70'000);
  const DiskAddress gone{block.key(), PutOne(*tier_, block).location};
  EraseOne(*tier_, gone);
  EraseOne(*tier_, gone);
  EraseOne(*tier_, {block.key(), DiskLocation::kNone});
  EXPECT_FALSE(DescribeOne(*tier_, {block.key(), DiskLocation::kNone}));
  EXPECT_EQ(
      GetRange(*tier_, {block.key(), DiskLocation::kNone}, block.header(), block.all()).status,
      DiskTier::GetStatus::kMissing);
  EXPECT_EQ(tier_->stats().erased, 1u);
  EXPECT_EQ(tier_->stats().used, ByteCount(0));
}

TEST_P(DiskTierContract, ErasesBlocksThatTheOwnerRefuses) {
  const DiskBlock a(1, 4, 70'000), b(2, 4, 70'000);
  ASSERT_EQ(PutOne(*tier_, a).status, DiskTier::PutStatus::kOk);
  ASSERT_EQ(PutOne(*tier_, b).status, DiskTier::PutStatus::kOk);
  tier_.reset();
  tier_ = maker_->Make();
  ASSERT_TRUE(
      tier_
          ->Recover([&](const DiskTier::Entry& entry) { return entry.key == a.key() ? 9u : 0u; },
                    [] { return false; })
          .ok());
  EXPECT_EQ(tier_->stats().blocks, 1u);
  Reopen();
  EXPECT_EQ(entries_.size(), 1u);
}

// A lack of memory costs no block that was promised to be durable.
TEST_P(DiskTierContract, KeepsUnplacedBlocksAndReportsThemAgain) {
  const DiskBlock a(1, 4, 70'000), b(2, 4, 70'000), c(3, 4, 70'000);
  ASSERT_EQ(PutOne(*tier_, a).status, DiskTier::PutStatus::kOk);
  ASSERT_EQ(PutOne(*tier_, b).status, DiskTier::PutStatus::kOk);
  tier_.reset();
  tier_ = maker_->Make();
  std::vector<DiskTier::Entry> told;
  uint32_t owner_of_b = DiskTier::kUnplaced;
  const auto recover = [&] {
    told.clear();
    return tier_->Recover(
        [&](const DiskTier::Entry& entry) {
          told.push_back(entry);
          return entry.key == b.key() ? owner_of_b : 9u;
        },
        [] { return false; });
  };
  ASSERT_TRUE(recover().ok());
  EXPECT_EQ(told.size(), 2u);
  EXPECT_EQ(tier_->stats().blocks, 2u);
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(tier_->stats().unplaced, 1u);
    ASSERT_TRUE(recover().ok());
    ASSERT_EQ(told.size(), 1u) << "the unplaced block must be reported again";
    EXPECT_EQ(told[0].key, b.key());
  }
  EXPECT_EQ(PutOne(*tier_, c).status, DiskTier::PutStatus::kOk) << "other blocks must be accepted";
  owner_of_b = 7;
  ASSERT_TRUE(recover().ok());
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(Has(*tier_, b, told[0].location));
  EXPECT_EQ(tier_->stats().unplaced, 0u);
  ASSERT_TRUE(recover().ok());
  EXPECT_TRUE(told.empty());
  Reopen();
  EXPECT_EQ(entries_.size(), 3u);
}

// A block that is not placed in this process is reported to the next one.
TEST_P(DiskTierContract, UnplacedBlocksAreReportedToTheNextProcess) {
  const DiskBlock block(1, 4, 70'000);
  ASSERT_EQ(PutOne(*tier_, block).status, DiskTier::PutStatus::kOk);
  tier_.reset();
  tier_ = maker_->Make();
  ASSERT_TRUE(tier_
                  ->Recover([](const DiskTier::Entry&) { return DiskTier::kUnplaced; },
                            [] { return false; })
                  .ok());
  Reopen();
  ASSERT_EQ(entries_.size(), 1u);
  EXPECT_TRUE(Has(*tier_, block, entries_.at(block.key()).location));
}

// The unplaced record on disk is the block: it gets no second record and keeps its bytes.
TEST_P(DiskTierContract, APutOfAnUnplacedBlockWritesNoSecondRecord) {
  const DiskBlock block(1, 4, 70'000), other(1, 2, 50'000);
  DiskBlock says_more(1, 4, 70'000);
  says_more.SetContent(DigestOf(99));
  ASSERT_EQ(block.key(), other.key());
  ASSERT_EQ(PutOne(*tier_, block).status, DiskTier::PutStatus::kOk);
  tier_.reset();
  tier_ = maker_->Make();
  DiskLocation there = DiskLocation::kNone;
  ASSERT_TRUE(tier_
                  ->Recover(
                      [&](const DiskTier::Entry& entry) {
                        there = entry.location;
                        return DiskTier::kUnplaced;
                      },
                      [] { return false; })
                  .ok());
  const ByteCount used = tier_->stats().used;
  EXPECT_EQ(PutOne(*tier_, other).status, DiskTier::PutStatus::kTaken);
  EXPECT_EQ(tier_->stats().unplaced, 1u);
  const auto found = Untold(block.key());
  ASSERT_TRUE(found) << "the unplaced record must keep its name";
  EXPECT_EQ(found->header, block.header());
  EXPECT_FALSE(Untold(DiskBlock(2, 1, 100).key()));
  const DiskTier::PutResult put = PutOne(*tier_, says_more);
  EXPECT_EQ(put.status, DiskTier::PutStatus::kOk) << "an older daemon may have put the same bytes";
  EXPECT_EQ(put.location, there);
  EXPECT_EQ(tier_->stats().unplaced, 0u);
  EXPECT_FALSE(Untold(block.key())) << "a block that was put must not be reported";
  EXPECT_EQ(tier_->stats().used, used);
  Reopen();
  ASSERT_EQ(entries_.size(), 1u);
  EXPECT_TRUE(Has(*tier_, block, entries_.at(block.key()).location));
}

TEST_P(DiskTierContract, RecoveryStopsWhenAsked) {
  ASSERT_EQ(PutOne(*tier_, DiskBlock(1, 1, 100)).status, DiskTier::PutStatus::kOk);
  tier_.reset();
  tier_ = maker_->Make();
  EXPECT_TRUE(absl::IsCancelled(
      tier_->Recover([](const DiskTier::Entry&) { return 1u; }, [] { return true; })));
}

TEST_P(DiskTierContract, RefusesPutsBeforeRecovery) {
  tier_.reset();
  tier_ = maker_->Make();
  EXPECT_EQ(PutOne(*tier_, DiskBlock(1, 1, 100)).status, DiskTier::PutStatus::kFailed);
  EXPECT_EQ(tier_->free_bytes(), ByteCount(0));
  EXPECT_FALSE(tier_->Erase({}).ok()) << "nothing can be erased before the recovery";
}

TEST_P(DiskTierContract, FindsNamesThatItHasNotReportedYet) {
  const DiskBlock there(1, 4, 70'000), erased(2, 1, 100), other(3, 1, 100);
  ASSERT_EQ(PutOne(*tier_, there).status, DiskTier::PutStatus::kOk);
  const DiskAddress gone{erased.key(), PutOne(*tier_, erased).location};
  ASSERT_TRUE(tier_->Erase({&gone, 1}).ok());
  EXPECT_FALSE(Untold(there.key())) << "a block that was put must not be reported";
  tier_.reset();
  tier_ = maker_->Make();
  const auto found = Untold(there.key());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->header, there.header());
  EXPECT_FALSE(Untold(erased.key()));
  EXPECT_FALSE(Untold(other.key()));
  EXPECT_EQ(RecoverAll(*tier_).size(), 1u);
  EXPECT_FALSE(Untold(there.key())) << "the block was reported by the recovery";
}

TEST_P(DiskTierContract, ReportsWhenSpaceRunsOutAndWhenItIsFreeAgain) {
  std::vector<std::pair<uint64_t, DiskLocation>> held;
  for (uint64_t number = 1;; ++number) {
    const DiskBlock block(number, 16, 128 << 10);
    const DiskTier::PutResult put = PutOne(*tier_, block);
    if (put.status == DiskTier::PutStatus::kNoRoom) break;
    ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
    held.emplace_back(number, put.location);
    ASSERT_LT(number, 1000u) << "the tier must have a limit";
    ASSERT_LE(tier_->stats().allocated, DiskTierMaker::kLimit);
  }
  EXPECT_GE(held.size() * MiB(2).value(), DiskTierMaker::kLimit.value() / 2);
  const auto [number, location] = held[held.size() / 2];
  EraseOne(*tier_, {DiskBlock(number, 16, 128 << 10).key(), location});
  const DiskBlock next(5000, 16, 128 << 10);
  const DiskTier::PutResult put = PutOne(*tier_, next);
  ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
  EXPECT_TRUE(Has(*tier_, next, put.location));
}

TEST_P(DiskTierContract, RefusesBlocksThatNeverFit) {
  const auto bytes = static_cast<uint32_t>(tier_->block_bytes_max().value() + (1 << 20));
  EXPECT_EQ(PutOne(*tier_, DiskBlock(1, 1, bytes)).status, DiskTier::PutStatus::kTooLarge);
  EXPECT_EQ(tier_->stats().used, ByteCount(0));
}

TEST_P(DiskTierContract, ReadsWithAnotherBlocksHeaderFail) {
  const DiskBlock a(1, 4, 64 << 10), b(2, 4, 64 << 10);
  const DiskTier::PutResult put = PutOne(*tier_, a);
  EXPECT_NE(GetRange(*tier_, {a.key(), put.location}, b.header(), b.all()).status,
            DiskTier::GetStatus::kOk);
  EXPECT_NE(GetRange(*tier_, {b.key(), put.location}, b.header(), b.all()).status,
            DiskTier::GetStatus::kOk);
}

TEST_P(DiskTierContract, KeepsFacts) {
  ASSERT_TRUE(tier_->PutFact("a", "1").ok());
  ASSERT_TRUE(tier_->PutFact("b", "2").ok());
  ASSERT_TRUE(tier_->PutFact("a", "3").ok());
  ASSERT_TRUE(tier_->PutFact("c", "4").ok());
  ASSERT_TRUE(tier_->PutFact("c", "").ok());
  Reopen();
  ASSERT_TRUE(tier_->PutFact("b", "5").ok());
  std::map<std::string, std::string> facts;
  tier_->ForEachFact([&](const std::string& key, const std::string& value) { facts[key] = value; });
  EXPECT_EQ(facts, (std::map<std::string, std::string>{{"a", "3"}, {"b", "5"}}));
}

TEST_P(DiskTierContract, KeepsManyFactsAtOnce) {
  std::vector<DiskTier::Fact> facts;
  for (int i = 0; i < 1'000; ++i) facts.push_back({absl::StrCat("pin/", i), absl::StrCat(i)});
  ASSERT_TRUE(tier_->PutFacts(facts).ok());
  for (size_t i = 0; i < facts.size(); i += 2) facts[i].value = "";
  ASSERT_TRUE(tier_->PutFacts(facts).ok());
  Reopen();
  size_t there = 0;
  tier_->ForEachFact([&](const std::string& key, const std::string& value) {
    EXPECT_EQ(key, "pin/" + value);
    EXPECT_EQ(std::stoi(value) % 2, 1);
    ++there;
  });
  EXPECT_EQ(there, facts.size() / 2);
}

// Each kind of facts has its own part: the other kinds, and blocks, find space even if that part is
// used up.
TEST_P(DiskTierContract, EachKindOfFactsHasItsOwnLimit) {
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i)
    status = tier_->PutFact(absl::StrCat("registration/", i), std::string(10'000, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (int starts = 0; starts < 2; ++starts) {
    EXPECT_FALSE(tier_->PutFact("registration/another", std::string(10'000, 'x')).ok());
    EXPECT_TRUE(tier_->PutFact("pin/1", "until tomorrow").ok());
    EXPECT_EQ(PutOne(*tier_, DiskBlock(1, 4, 64 << 10)).status, DiskTier::PutStatus::kOk);
    const DiskTier::FactUse use = tier_->stats().facts[1];
    EXPECT_GT(use.facts, 0u);
    EXPECT_LE(use.bytes, use.bytes_max);
    Reopen();
  }
  EXPECT_TRUE(tier_->PutFact("registration/0", "").ok());
  EXPECT_TRUE(tier_->PutFact("registration/another", std::string(9'000, 'x')).ok());
}

TEST_P(DiskTierContract, ManyThreadsPutGetAndErase) {
  constexpr int kThreads = 4;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 20; ++i) {
        const DiskBlock block(1 + thread * 1000 + i, 1 + static_cast<uint32_t>(i % 5), 40'000);
        const DiskTier::PutResult put = PutOne(*tier_, block);
        wrong += put.status != DiskTier::PutStatus::kOk || !Has(*tier_, block, put.location);
        if (i % 3 != 0) EraseOne(*tier_, {block.key(), put.location});
        (void)tier_->stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  Reopen();
  EXPECT_EQ(entries_.size(), kThreads * 7u);
}

// Random puts, gets, erasures and restarts, compared with a map.
TEST_P(DiskTierContract, AgreesWithAMap) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  struct Known {
    uint32_t segments, bytes;
    DiskLocation location;
  };
  std::map<uint64_t, Known> known;
  for (int step = 0; step < 400; ++step) {
    const uint64_t number = 1 + random() % 64;
    const auto it = known.find(number);
    const uint64_t what = random() % 100;
    if (what < 2) {
      Reopen();
      ASSERT_EQ(entries_.size(), known.size());
      for (auto& [n, block] : known) {
        const auto entry = entries_.find(BlockKey{DigestOf(7), DigestOf(n)});
        ASSERT_NE(entry, entries_.end()) << n;
        block.location = entry->second.location;
      }
    } else if (it == known.end()) {
      const Known block{.segments = 1 + static_cast<uint32_t>(random() % 40),
                        .bytes = static_cast<uint32_t>(1 + random() % 60'000),
                        .location = DiskLocation::kNone};
      const DiskTier::PutResult put =
          PutOne(*tier_, DiskBlock(number, block.segments, block.bytes));
      if (put.status == DiskTier::PutStatus::kNoRoom) continue;
      ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
      known[number] = {block.segments, block.bytes, put.location};
    } else {
      const DiskBlock block(number, it->second.segments, it->second.bytes);
      ASSERT_TRUE(Has(*tier_, block, it->second.location)) << number;
      if (what < 40) continue;
      EraseOne(*tier_, {block.key(), it->second.location});
      known.erase(it);
    }
    ASSERT_LE(tier_->stats().allocated, DiskTierMaker::kLimit);
    ASSERT_EQ(tier_->stats().blocks, known.size());
  }
}

}  // namespace larder::testing
