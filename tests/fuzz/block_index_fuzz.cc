// BlockIndex against a model that is a std::map.  The model knows which blocks may leave, not which
// one must: where eviction chooses, the model checks the choice and follows it.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "storage/block_index.h"
#include "storage/check.h"
#include "tests/fuzz/instruction_fuzz.h"

namespace larder {
namespace {

constexpr uint64_t kNames = 40;
constexpr uint64_t kVariants = 3;

Digest Name(uint64_t i) {
  Digest digest;
  // Some names share their first half, so that tags and cells collide.
  const uint64_t words[2] = {(i / 4 + 1) * 0x9E3779B97F4A7C15, i};
  std::memcpy(digest.bytes.data(), words, sizeof words);
  return digest;
}

using Key = std::pair<uint64_t, uint64_t>;  // variant, name

struct Block {
  BlockState state = BlockState::kAbsent;
  EntryRef ref;
  Extent extent;
  std::optional<uint64_t> parent;  // nullopt: without metadata
  bool counted = false;
  uint16_t holds = 0, pins = 0, children = 0;

  [[nodiscard]] bool evictable() const {
    return state == BlockState::kHost && holds == 0 && pins == 0;
  }
};

class Fuzz {
 public:
  explicit Fuzz(FuzzRun* run) : run_(*run) {
    std::map<uint64_t, uint32_t> blocks_by_shard;
    for (uint64_t v = 0; v < kVariants; ++v) {
      variants_.push_back(*index_.InternVariant(Name(1000 + v)));
      for (uint64_t i = 0; i < kNames; ++i)
        ++blocks_by_shard[IndexHash(variants_[v], Name(i)) >> 60];
    }
    for (const auto& [shard, blocks] : blocks_by_shard) {
      LARDER_CHECK(blocks <= IndexShard::kEvictionLook);
    }
  }

  void Step() {
    now_s_ += static_cast<uint32_t>(run_.Below(100));
    switch (run_.Below(14)) {
      case 0:
      case 1:
      case 2:
        return Insert();
      case 3:
        return Claim();
      case 4:
        return EndClaim();
      case 5:
      case 6:
        return Hold();
      case 7:
      case 8:
        return Unhold();
      case 9:
        return Drop();
      case 10:
        return EvictOne();
      case 11:
        return EvictRef();
      case 12:
        return Pin();
      default:
        return Unpin();
    }
  }

  void Check() {
    index_.CheckInvariants();
    ASSERT_EQ(index_.blocks(), blocks_.size());
    ASSERT_EQ(index_.doomed(), doomed_.size());
    for (uint64_t v = 0; v < kVariants; ++v) CheckVariant(v);
    size_t seen = 0;
    index_.ForEach([&](const BlockIndex::View& view) {
      ++seen;
      const Block& block = blocks_.at(KeyOf(view.variant, view.digest));
      EXPECT_EQ(view.state, block.state);
      EXPECT_EQ(view.extent, block.extent);
      EXPECT_EQ(view.holds, block.holds);
      EXPECT_EQ(view.pins, block.pins);
      EXPECT_EQ(view.children, block.children);
    });
    ASSERT_EQ(seen, blocks_.size());
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  [[nodiscard]] uint64_t evictions() const { return evictions_; }
  [[nodiscard]] uint64_t dooms() const { return dooms_; }

 private:
  static uint64_t NumberOf(const Digest& digest) {
    uint64_t number;
    std::memcpy(&number, digest.bytes.data() + 8, sizeof number);
    return number;
  }
  static Key KeyOf(VariantIndex variant, const Digest& digest) {
    return {static_cast<uint64_t>(variant), NumberOf(digest)};
  }
  Key SomeKey() { return {run_.Below(kVariants), run_.Below(kNames)}; }
  [[nodiscard]] VariantIndex Variant(const Key& key) const { return variants_[key.first]; }

  Extent SomeExtent() {
    return {.slab = SlabId{2}, .page = next_page_++, .pages = static_cast<uint32_t>(run_.Below(3))};
  }
  std::optional<uint64_t> SomeParent(const Key& key) {
    if (key.second == 0 || run_.OneIn(8)) return std::nullopt;
    return key.second - 1;
  }
  static std::unique_ptr<const BlockMetadata> MetadataOf(const std::optional<uint64_t>& parent) {
    if (!parent) return nullptr;
    return BlockMetadata::Make(Name(*parent), std::vector<uint32_t>(16), UniformTable(2, 100));
  }

  void CheckVariant(uint64_t v) {
    BlockIndex::VariantTotals totals;
    std::vector<Digest> digests;
    for (uint64_t name = 0; name < kNames; ++name) digests.push_back(Name(name));
    std::vector<BlockIndex::Presence> out(kNames);
    index_.Lookup(variants_[v], digests, out);
    for (uint64_t name = 0; name < kNames; ++name) {
      const auto block = blocks_.find({v, name});
      const bool there = block != blocks_.end() && block->second.state == BlockState::kHost;
      ASSERT_EQ(out[name].tiers, there ? 1u << static_cast<int>(Tier::kHost) : 0);
      ASSERT_EQ(out[name].pages, there ? block->second.extent.pages : 0);
      if (!there) continue;
      ++totals.blocks;
      totals.bytes += block->second.extent.bytes();
    }
    ASSERT_EQ(index_.TotalsOf(variants_[v]).blocks, totals.blocks);
    ASSERT_EQ(index_.TotalsOf(variants_[v]).bytes, totals.bytes);
  }

  // ---- the model's side of a change
  bool CountInParent(const Key& key, const Block& block) {
    if (!block.parent) return false;
    const auto parent = blocks_.find({key.first, *block.parent});
    if (parent == blocks_.end() || parent->second.state != BlockState::kHost) return false;
    ++parent->second.children;
    return true;
  }
  // What Drop or eviction of a HOST block does.
  void Leave(const Key& key) {
    Block block = blocks_.at(key);
    blocks_.erase(key);
    if (block.counted) {
      const auto parent = blocks_.find({key.first, *block.parent});
      if (parent != blocks_.end() && parent->second.children > 0) --parent->second.children;
    }
    if (block.holds == 0) return;
    block.state = BlockState::kDoomed;
    doomed_[block.ref.value] = block;
    ++dooms_;
  }

  // ---- instructions
  void Insert() {
    const Key key = SomeKey();
    Block block;
    block.state = BlockState::kHost;
    block.extent = SomeExtent();
    block.parent = SomeParent(key);
    const auto result = index_.Insert({.variant = Variant(key),
                                       .digest = Name(key.second),
                                       .extent = block.extent,
                                       .metadata = MetadataOf(block.parent)},
                                      now_s_, &block.ref);
    const bool known = blocks_.contains(key);
    ASSERT_EQ(result,
              known ? BlockIndex::InsertResult::kDuplicate : BlockIndex::InsertResult::kInserted);
    if (known) return;
    block.counted = CountInParent(key, block);
    blocks_[key] = block;
  }
  void Claim() {
    const Key key = SomeKey();
    Block block;
    block.state = BlockState::kReserved;
    const auto result = index_.Claim(Variant(key), Name(key.second), &block.ref);
    ASSERT_EQ(result == BlockIndex::InsertResult::kInserted, !blocks_.contains(key));
    if (result != BlockIndex::InsertResult::kInserted) return;
    blocks_[key] = block;
    claims_.push_back(key);
  }
  void EndClaim() {
    if (claims_.empty()) return;
    const Key key = Take(&claims_);
    Block& block = blocks_.at(key);
    if (run_.OneIn(3)) {
      index_.Abandon(block.ref);
      blocks_.erase(key);
      return;
    }
    block.extent = SomeExtent();
    block.parent = SomeParent(key);
    index_.Fill(block.ref, block.extent, MetadataOf(block.parent), now_s_);
    block.counted = CountInParent(key, block);
    block.state = BlockState::kHost;
  }
  void Hold() {
    const uint64_t variant = run_.Below(kVariants);
    std::vector<uint64_t> names(run_.Below(20));
    std::vector<Digest> digests;
    for (uint64_t& name : names) digests.push_back(Name(name = run_.Below(kNames)));
    std::vector<BlockIndex::Held> held(names.size());
    index_.Hold(variants_[variant], digests, now_s_, held);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto block = blocks_.find({variant, names[i]});
      const bool there = block != blocks_.end() && block->second.state == BlockState::kHost;
      ASSERT_EQ(held[i].ref, there ? block->second.ref : EntryRef{});
      if (!there) continue;
      ASSERT_EQ(held[i].extent, block->second.extent);
      ASSERT_EQ(held[i].metadata != nullptr, block->second.parent.has_value());
      ++block->second.holds;
      holds_.push_back(held[i].ref);
    }
    if (run_.OneIn(4)) HoldAgain();
  }
  void HoldAgain() {
    if (holds_.empty()) return;
    const EntryRef ref = holds_[run_.Below(holds_.size())];
    ASSERT_TRUE(index_.HoldAgain({&ref, 1}));
    ++ByRef(ref).holds;
    holds_.push_back(ref);
  }
  void Unhold() {
    std::vector<EntryRef> refs;
    std::vector<Extent> expected, freed;
    for (uint64_t n = run_.Below(20); n > 0 && !holds_.empty(); --n) {
      refs.push_back(Take(&holds_));
      Block& block = ByRef(refs.back());
      if (--block.holds > 0 || block.state != BlockState::kDoomed) continue;
      if (block.extent.pages > 0) expected.push_back(block.extent);
      doomed_.erase(refs.back().value);
    }
    index_.Unhold(refs, &freed);
    ASSERT_TRUE(std::is_permutation(freed.begin(), freed.end(), expected.begin(), expected.end()));
  }
  void Drop() {
    const Key key = SomeKey();
    const auto block = blocks_.find(key);
    const bool there = block != blocks_.end() && block->second.state == BlockState::kHost;
    std::optional<Extent> freed;
    const bool dropped = block != blocks_.end() && run_.OneIn(2)
                             ? index_.Drop(block->second.ref, &freed)
                             : index_.Drop(Variant(key), Name(key.second), &freed);
    ASSERT_EQ(dropped, there);
    if (!there) return;
    const bool out = block->second.holds == 0 && block->second.extent.pages > 0;
    ASSERT_EQ(freed, out ? std::optional(block->second.extent) : std::nullopt);
    Leave(key);
  }
  void EvictOne() {
    const auto gone = index_.EvictOne(now_s_);
    const auto may_go = [](const auto& item) { return item.second.evictable(); };
    const auto childless = [](const auto& item) {
      return item.second.evictable() && item.second.children == 0;
    };
    ASSERT_EQ(gone.has_value(), std::any_of(blocks_.begin(), blocks_.end(), may_go));
    if (!gone) return;
    const Key key = KeyOf(gone->variant, gone->digest);
    const Block& block = blocks_.at(key);
    ASSERT_TRUE(block.evictable());
    ASSERT_EQ(gone->extent, block.extent);
    // A look at every shard sees all blocks, as the constructor checked.
    if (block.children > 0) {
      ASSERT_FALSE(std::any_of(blocks_.begin(), blocks_.end(), childless));
    }
    Leave(key);
    ++evictions_;
  }
  void EvictRef() {
    const Key key = SomeKey();
    const auto block = blocks_.find(key);
    if (block == blocks_.end()) return;
    const bool evictable = block->second.evictable();
    ASSERT_EQ(index_.Evictable(block->second.ref), evictable);
    const auto gone = index_.EvictRef(block->second.ref);
    ASSERT_EQ(gone.has_value(), evictable);
    if (!gone) return;
    ASSERT_EQ(KeyOf(gone->variant, gone->digest), key);
    ASSERT_EQ(gone->extent, block->second.extent);
    Leave(key);
  }
  void Pin() {
    const Key key = SomeKey();
    const auto block = blocks_.find(key);
    const bool there = block != blocks_.end() && block->second.state == BlockState::kHost;
    ASSERT_EQ(index_.Pin(Variant(key), Name(key.second)), there);
    if (there) ++block->second.pins;
  }
  void Unpin() {
    const Key key = SomeKey();
    index_.Unpin(Variant(key), Name(key.second));
    const auto block = blocks_.find(key);
    if (block != blocks_.end() && block->second.pins > 0) --block->second.pins;
  }

  Block& ByRef(EntryRef ref) {
    if (const auto doomed = doomed_.find(ref.value); doomed != doomed_.end()) return doomed->second;
    return std::find_if(blocks_.begin(), blocks_.end(),
                        [&](const auto& item) { return item.second.ref == ref; })
        ->second;
  }
  template <class T>
  T Take(std::vector<T>* from) {
    std::swap((*from)[run_.Below(from->size())], from->back());
    const T taken = from->back();
    from->pop_back();
    return taken;
  }

  FuzzRun& run_;
  BlockIndex index_;
  std::vector<VariantIndex> variants_;
  std::map<Key, Block> blocks_;       // named
  std::map<uint32_t, Block> doomed_;  // by ref
  std::vector<Key> claims_;
  std::vector<EntryRef> holds_;  // one for each hold
  uint32_t now_s_ = 1;
  uint32_t next_page_ = 0;
  uint64_t evictions_ = 0;
  uint64_t dooms_ = 0;
};

TEST(BlockIndexFuzz, AgreesWithAMap) {
  FuzzRun run("block_index_fuzz", 20'000);
  Fuzz fuzz(&run);
  for (uint64_t step = 0; step < run.steps(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step << " of seed " << run.seed());
    fuzz.Step();
    if (testing::Test::HasFatalFailure()) return;
    fuzz.Check();
    if (testing::Test::HasFatalFailure()) return;
  }
  if (run.steps() >= 10'000) {
    EXPECT_GT(fuzz.evictions(), 0u) << "the fuzz no longer evicts";
    EXPECT_GT(fuzz.dooms(), 0u) << "the fuzz no longer drops what is held";
  }
}

}  // namespace
}  // namespace larder
