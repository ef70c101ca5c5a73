// Instruction-list fuzz of BlockIndex against a std::map (block_index_model.h): blocks are
// published, held, pinned, spilled, promoted, evicted and dropped in any order.  After each step:
//
// - Each name has the state, extent, holds, pins, children and disk location that the model knows,
//   and its parent counts it or not.  Lookups and totals agree.
// - Each extent and disk location is returned exactly once, when no block has it any longer.
// - An eviction takes a block that may leave and before which no other block must leave.  It takes
//   nothing only if no block may leave.
//
// A failed CHECK of the index itself ends the program.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "storage/check.h"
#include "storage/index/block_index.h"
#include "tests/fuzz/block_index_model.h"
#include "tests/fuzz/instruction_fuzz.h"

namespace larder {
namespace {

constexpr uint64_t kNames = 40;
constexpr uint64_t kNoName = kNames;  // no block of this name ever enters
constexpr uint64_t kVariants = 3;

using Room = std::tuple<ModelKey, uint64_t>;  // name, location
Room RoomOf(const FreedExtent& room) { return {KeyOf(room.variant, room.digest), room.location}; }

class Fuzz {
 public:
  explicit Fuzz(FuzzRun* run) : run_(*run) {
    std::map<uint64_t, uint32_t> blocks_by_shard;
    for (uint64_t v = 0; v < kVariants; ++v) {
      variants_.push_back(*index_.InternVariant(Name(1000 + v)));
      for (uint64_t i = 0; i < kNames; ++i)
        ++blocks_by_shard[IndexHash(variants_[v], Name(i)) >> 60];
    }
    // So a search through a list sees the whole list, because only named blocks are in a list.
    for (const auto& [shard, blocks] : blocks_by_shard) {
      LARDER_CHECK(blocks <= IndexShard::kEvictionLook);
    }
  }

  void Step() {
    struct Instruction {
      uint32_t weight;
      void (Fuzz::*run)();
    };
    static constexpr Instruction kInstructions[] = {
        {100, &Fuzz::Insert},      {20, &Fuzz::Claim},         {14, &Fuzz::EndClaim},
        {70, &Fuzz::InsertOnDisk}, {50, &Fuzz::SetOnDisk},     {50, &Fuzz::Hold},
        {10, &Fuzz::HoldAgain},    {50, &Fuzz::Unhold},        {10, &Fuzz::LookAt},
        {60, &Fuzz::BeginPromote}, {8, &Fuzz::FinishPromote},  {4, &Fuzz::FailPromote},
        {10, &Fuzz::Drop},         {16, &Fuzz::DropRef},       {20, &Fuzz::EvictOne},
        {20, &Fuzz::EvictRef},     {6, &Fuzz::EvictOneOfDisk}, {12, &Fuzz::EvictDiskRef},
        {50, &Fuzz::Pin},          {15, &Fuzz::Unpin},         {1, &Fuzz::DrainHost},
        {1, &Fuzz::DrainDisk},     {2, &Fuzz::CountChildren},  {110, &Fuzz::Clear},
        {60, &Fuzz::BeginRewrite}, {10, &Fuzz::FinishRewrite}, {3, &Fuzz::DropHostCopy}};
    now_s_ += static_cast<uint32_t>(run_.Below(100));
    uint64_t weights = 0;
    for (const Instruction& instruction : kInstructions) weights += instruction.weight;
    uint64_t drawn = run_.Below(weights);
    const Instruction* chosen = kInstructions;
    for (; drawn >= chosen->weight; ++chosen) drawn -= chosen->weight;
    (this->*chosen->run)();
  }

  void Check() {
    index_.CheckInvariants();
    CheckEvents();
    ASSERT_EQ(index_.blocks(), model_.named().size());
    ASSERT_EQ(index_.doomed(), model_.doomed());
    uint64_t disk_only = 0;
    for (uint64_t v = 0; v < kVariants; ++v) disk_only += CheckVariant(v);
    ASSERT_EQ(index_.disk_only(), disk_only);
    size_t seen = 0;
    index_.ForEach([&](const BlockIndex::View& view) {
      ++seen;
      CheckView(view, model_.named().at(KeyOf(view.variant, view.digest)));
    });
    ASSERT_EQ(seen, model_.named().size());
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  [[nodiscard]] uint64_t reached(std::string_view corner) { return reached_[corner]; }

  // A watcher that reads all events knows where each block is.
  void CheckEvents() {
    constexpr TierSet kBoth = TierBit(Tier::kHost) | TierBit(Tier::kDisk);
    NumberedEvent one;
    for (; index_.events().Read(heard_, kBoth, {&one, 1})->events == 1; ++heard_) {
      const TierEvent& event = one.event;
      ASSERT_EQ(one.number, heard_ + 1);
      TierSet& tiers = told_[KeyOf(event.variant, event.digest)];
      ASSERT_EQ((tiers & TierBit(event.tier)) == 0, event.stored);
      tiers ^= TierBit(event.tier);
    }
    ASSERT_EQ(heard_, index_.events().newest());
    std::erase_if(told_, [](const auto& block) { return block.second == 0; });
    std::map<ModelKey, TierSet> expected;
    for (const auto& [key, block] : model_.named()) {
      if (block.in_a_tier()) expected[key] = TiersOf(block.state);
    }
    ASSERT_TRUE(told_ == expected);
  }

 private:
  // ---- Drawing.
  ModelKey SomeKey() { return {run_.Below(kVariants), run_.Below(kNames)}; }
  // Returns a reference to a named block, or to a held block whose name is gone.
  std::optional<EntryRef> SomeRef() {
    if (run_.OneIn(4) && !holds_.empty()) return holds_[run_.Below(holds_.size())];
    const ModelBlock* const block = model_.Find(SomeKey());
    return block == nullptr ? std::nullopt : std::optional(block->ref);
  }
  Extent SomeExtent() {
    return {.slab = SlabId{2}, .page = next_page_++, .pages = static_cast<uint32_t>(run_.Below(3))};
  }
  // Usually such that chains form, but a client may name any parent, also the block itself.
  uint64_t SomeParent(const ModelKey& key) {
    if (run_.OneIn(8)) return run_.Below(kNames);
    return key.second == 0 ? kNoName : key.second - 1;
  }
  std::optional<uint64_t> SomeParentOrNone(const ModelKey& key) {
    if (run_.OneIn(8)) return std::nullopt;
    return SomeParent(key);
  }
  template <class T>
  T Take(std::vector<T>* from) {
    std::swap((*from)[run_.Below(from->size())], from->back());
    const T taken = from->back();
    from->pop_back();
    return taken;
  }

  [[nodiscard]] VariantIndex Variant(const ModelKey& key) const { return variants_[key.first]; }
  static std::unique_ptr<const BlockMetadata> MetadataOf(const std::optional<uint64_t>& parent) {
    if (!parent) return nullptr;
    return BlockMetadata::Make(Name(*parent), std::vector<uint32_t>(16), UniformTable(2, 100));
  }
  void Reached(std::string_view corner, bool really = true) {
    LARDER_CHECK(std::find(kCorners.begin(), kCorners.end(), corner) != kCorners.end());
    if (really) ++reached_[corner];
  }

  // ---- Comparing.
  // Returns how many of the variant's blocks are on disk alone.
  uint64_t CheckVariant(uint64_t v) {
    BlockIndex::VariantTotals totals;
    std::vector<Digest> digests;
    for (uint64_t name = 0; name < kNames; ++name) digests.push_back(Name(name));
    std::vector<BlockIndex::Presence> out(kNames);
    index_.Lookup(variants_[v], digests, out);
    for (uint64_t name = 0; name < kNames; ++name) {
      const ModelBlock* const block = model_.Find({v, name});
      const ModelBlock expected = block == nullptr ? ModelBlock() : *block;
      EXPECT_EQ(out[name].tiers, TiersOf(expected.state));
      EXPECT_EQ(out[name].pages, expected.extent.pages);
      totals.disk_only += OnDiskAlone(expected.state) ? 1 : 0;
      if (!InHost(expected.state)) continue;
      ++totals.blocks;
      totals.bytes += expected.extent.bytes();
    }
    EXPECT_EQ(index_.TotalsOf(variants_[v]).blocks, totals.blocks);
    EXPECT_EQ(index_.TotalsOf(variants_[v]).bytes, totals.bytes);
    EXPECT_EQ(index_.TotalsOf(variants_[v]).disk_only, totals.disk_only);
    return totals.disk_only;
  }
  static void CheckExtent(const Extent& extent, const ModelBlock& block) {
    EXPECT_EQ(extent.pages, block.extent.pages);
    if (OnDiskAlone(block.state)) return;
    EXPECT_EQ(extent, block.extent);
  }
  static void CheckView(const BlockIndex::View& view, const ModelBlock& block) {
    EXPECT_EQ(view.state, block.state);
    CheckExtent(view.extent, block);
    EXPECT_EQ(view.holds, block.holds);
    EXPECT_EQ(view.pinned_host, block.pinned_host);
    EXPECT_EQ(view.pinned_disk, block.pinned_disk);
    EXPECT_EQ(view.children, block.children);
    EXPECT_EQ(view.counted_in_parent, block.counted_by.has_value());
    EXPECT_EQ(view.disk_location, block.location);
  }
  static void CheckHeld(const BlockIndex::Held& held, const ModelBlock& block) {
    EXPECT_EQ(held.ref, block.ref);
    EXPECT_EQ(held.state, block.state);
    CheckExtent(held.extent, block);
    EXPECT_EQ(held.metadata != nullptr, block.metadata);
    EXPECT_EQ(held.disk_location, block.location);
  }
  // Notes the reference of a new block; for a known block, checks that it has not changed.
  void CheckRef(const ModelKey& key, EntryRef ref) {
    ModelBlock& block = *model_.Find(key);
    if (block.ref == EntryRef{}) block.ref = ref;
    EXPECT_EQ(ref, block.ref);
  }

  // ---- Entering.
  void Insert() {
    const ModelKey key = SomeKey();
    const Extent extent = SomeExtent();
    const auto parent = SomeParentOrNone(key);
    const ModelBlock* const known = model_.Find(key);
    const BlockState before = known == nullptr ? BlockState::kAbsent : known->state;
    EntryRef ref;
    const auto result = index_.Insert({.variant = Variant(key),
                                       .digest = Name(key.second),
                                       .extent = extent,
                                       .metadata = MetadataOf(parent)},
                                      now_s_, &ref);
    ASSERT_EQ(result, model_.Insert(key, extent, parent));
    if (result == BlockIndex::InsertResult::kInserted) CheckRef(key, ref);
    Reached("published while on disk alone", before == BlockState::kDisk);
    Reached("published while on disk alone, pinned in HOST",
            before == BlockState::kDisk && model_.Find(key)->pinned_host);
    Reached("published while promoted", before == BlockState::kPromoting);
  }
  void Claim() {
    const ModelKey key = SomeKey();
    EntryRef ref;
    const auto result = index_.Claim(Variant(key), Name(key.second), &ref);
    ASSERT_EQ(result, model_.Claim(key));
    if (result != BlockIndex::InsertResult::kInserted) return;
    CheckRef(key, ref);
    claims_.push_back(key);
  }
  void EndClaim() {
    if (claims_.empty()) return;
    const ModelKey key = Take(&claims_);
    const EntryRef ref = model_.Find(key)->ref;
    if (run_.OneIn(3)) {
      index_.Abandon(ref);
      model_.Abandon(key);
      return;
    }
    const Extent extent = SomeExtent();
    const auto parent = SomeParentOrNone(key);
    index_.Fill(ref, extent, MetadataOf(parent), now_s_);
    model_.Fill(key, extent, parent);
  }
  void InsertOnDisk() {
    const ModelKey key = SomeKey();
    const uint64_t parent = SomeParent(key), location = next_location_++;
    const auto pages = static_cast<uint32_t>(run_.Below(3));
    const ModelBlock* const known = model_.Find(key);
    const bool in_host = known != nullptr && known->state == BlockState::kHost;
    const EntryRef same = in_host && !run_.OneIn(8) ? known->ref : SomeRef().value_or(EntryRef{});
    EntryRef ref;
    const auto result = index_.InsertOnDisk({.variant = Variant(key),
                                             .digest = Name(key.second),
                                             .parent = Name(parent),
                                             .location = location,
                                             .pages = pages},
                                            same, now_s_, &ref);
    ASSERT_EQ(result, model_.InsertOnDisk(key, pages, parent, location, same));
    if (result == BlockIndex::InsertResult::kInserted) CheckRef(key, ref);
    const bool busy = result == BlockIndex::InsertResult::kBusy;
    Reached("claimed while found on disk", busy && !in_host);
    Reached("in HOST while found on disk", busy && in_host);
  }

  // ---- Holding.
  void Hold() {
    const uint64_t variant = run_.Below(kVariants);
    std::vector<uint64_t> names(run_.Below(20));
    std::vector<Digest> digests;
    for (uint64_t& name : names) digests.push_back(Name(name = run_.Below(kNames)));
    std::vector<BlockIndex::Held> held(names.size());
    const auto what = static_cast<HoldWhat>(run_.Below(3));
    index_.Hold(variants_[variant], digests, now_s_, held, what);
    for (size_t i = 0; i < names.size(); ++i) {
      ModelBlock* const block = model_.Find({variant, names[i]});
      const bool there =
          block != nullptr && (what == HoldWhat::kHost ? InHost(block->state) : block->in_a_tier());
      CheckHeld(held[i], there ? *block : ModelBlock());
      if (!there) continue;
      ++block->holds;
      holds_.push_back(held[i].ref);
    }
  }
  void HoldAgain() {
    if (holds_.empty()) return;
    const EntryRef ref = holds_[run_.Below(holds_.size())];
    ASSERT_TRUE(index_.HoldAgain({&ref, 1}));
    ++model_.ByRef(ref).holds;
    holds_.push_back(ref);
  }
  void LookAt() {
    if (holds_.empty()) return;
    const EntryRef ref = holds_[run_.Below(holds_.size())];
    CheckHeld(index_.LookAt(ref), model_.ByRef(ref));
  }
  void Unhold() {
    std::vector<EntryRef> refs;
    std::vector<Extent> expected, freed;
    std::vector<Room> expected_rooms;
    for (uint64_t n = run_.Below(holds_.size() / 4 + 1); n > 0; --n) {
      refs.push_back(Take(&holds_));
      const ModelKey key = model_.ByRef(refs.back()).key;
      const BlockIndexModel::Left left = model_.Unhold(refs.back());
      if (left.extent) expected.push_back(*left.extent);
      if (left.location != 0) expected_rooms.emplace_back(key, left.location);
    }
    std::vector<FreedExtent> given;
    index_.Unhold(refs, &freed, &given);
    ASSERT_TRUE(std::is_permutation(freed.begin(), freed.end(), expected.begin(), expected.end()));
    std::vector<Room> rooms;
    for (const FreedExtent& room : given) rooms.push_back(RoomOf(room));
    ASSERT_TRUE(std::is_permutation(rooms.begin(), rooms.end(), expected_rooms.begin(),
                                    expected_rooms.end()));
    Reached("disk space of a doomed block", !rooms.empty());
  }
  void Pin() { SetPinned(true); }
  void Unpin() { SetPinned(false); }
  void SetPinned(bool pinned) {
    const ModelKey key = SomeKey();
    const Tier tier = run_.OneIn(2) ? Tier::kHost : Tier::kDisk;
    ModelBlock* const block = model_.Find(key);
    const bool there = block != nullptr && block->in_a_tier();
    ASSERT_EQ(index_.SetPinned(Variant(key), Name(key.second), tier, pinned), there);
    if (there) (tier == Tier::kHost ? block->pinned_host : block->pinned_disk) = pinned;
  }

  // ---- From HOST to disk and back.
  void SetOnDisk() {
    if (holds_.empty()) return;
    const EntryRef ref = holds_[run_.Below(holds_.size())];
    const uint64_t location = next_location_++;
    ASSERT_EQ(index_.SetOnDisk(ref, location), model_.SetOnDisk(ref, location));
  }
  // A promotion keeps the hold with which it began.
  void BeginPromote() {
    if (holds_.empty()) return;
    const EntryRef ref = Take(&holds_);
    const bool begun = index_.BeginPromote(ref);
    ASSERT_EQ(begun, model_.BeginPromote(ref));
    (begun ? promotions_ : holds_).push_back(ref);
  }
  void FinishPromote() {
    if (promotions_.empty()) return;
    const EntryRef ref = Take(&promotions_);
    const Extent extent = SomeExtent();
    const uint64_t parent = SomeParent(model_.ByRef(ref).key);
    const bool finished = index_.FinishPromote(ref, extent, MetadataOf(parent), now_s_);
    ASSERT_EQ(finished, model_.FinishPromote(ref, extent, parent));
    holds_.push_back(ref);
    Reached(finished ? "promoted" : "dropped while promoted");
  }
  void FailPromote() {
    if (promotions_.empty()) return;
    const EntryRef ref = Take(&promotions_);
    index_.FailPromote(ref);
    model_.FailPromote(ref);
    holds_.push_back(ref);
    Reached("not promoted");
  }
  // A rewrite keeps the hold with which it began.
  void BeginRewrite() {
    if (holds_.empty()) return;
    const EntryRef ref = Take(&holds_);
    const uint64_t location = run_.OneIn(8) ? next_location_ : model_.ByRef(ref).location;
    const bool begun = location != 0 && index_.BeginRewrite(ref, location);
    ASSERT_EQ(begun, location != 0 && model_.BeginRewrite(ref, location));
    (begun ? rewrites_ : holds_).push_back(ref);
  }
  void FinishRewrite() {
    if (rewrites_.empty()) return;
    const EntryRef ref = Take(&rewrites_);
    const uint64_t location = run_.OneIn(4) ? 0 : next_location_++;
    const bool written = index_.FinishRewrite(ref, location);
    ASSERT_EQ(written, model_.FinishRewrite(ref, location));
    holds_.push_back(ref);
    Reached("rewritten", written);
    Reached("dropped while being rewritten", !written && location != 0);
  }

  // ---- Leaving.
  void Drop() {
    const ModelKey key = SomeKey();
    const ModelBlock* const block = model_.Find(key);
    std::optional<Extent> freed;
    FreedExtent room;
    const bool dropped = index_.Drop(Variant(key), Name(key.second), &freed, &room);
    CheckDropped(block, dropped, freed, room);
  }
  void DropRef() {
    const auto ref = SomeRef();
    if (!ref) return;
    std::optional<Extent> freed;
    FreedExtent room;
    const bool dropped = index_.Drop(*ref, &freed, &room);
    CheckDropped(&model_.ByRef(*ref), dropped, freed, room);
  }
  void CheckDropped(const ModelBlock* block, bool dropped, const std::optional<Extent>& freed,
                    const FreedExtent& room) {
    ASSERT_EQ(dropped, block != nullptr && block->in_a_tier());
    BlockIndexModel::Left left;
    if (dropped) {
      Reached("doomed", block->holds > 0);
      const ModelKey key = block->key;
      left = model_.Leave(key);
      ASSERT_TRUE(left.location == 0 || RoomOf(room) == Room(key, left.location));
    }
    ASSERT_EQ(freed, left.extent);
    ASSERT_EQ(room.location, left.location);
  }
  void DropHostCopy() {
    if (holds_.empty()) return;
    const EntryRef ref = holds_[run_.Below(holds_.size())];
    const ModelBlock block = model_.ByRef(ref);
    std::optional<Extent> freed;
    FreedExtent room;
    const bool rewritten = std::ranges::count(rewrites_, ref) > 0;
    const bool drops = InHost(block.state) && !rewritten;
    ASSERT_EQ(index_.DropHostCopy(ref, &freed, &room), drops);
    ASSERT_TRUE(!freed && room.location == 0);  // the block is held
    if (!drops) return;
    model_.DropHostCopy(block.key);
    if (block.state != BlockState::kHostDisk) return;
    const Digest name = Name(block.key.second);
    BlockIndex::Held now;
    index_.Hold(Variant(block.key), {&name, 1}, now_s_, {&now, 1}, HoldWhat::kUntouched);
    CheckRef(block.key, now.ref);
    std::vector<Extent> none;
    index_.Unhold({&now.ref, 1}, &none);
    Reached("damaged in HOST, kept on disk");
  }
  void Clear() {
    using Status = ClearedBlock::Status;
    const ModelKey key = SomeKey();
    const TierSet host = TierBit(Tier::kHost);
    const TierSet tiers = run_.OneIn(2) ? host : static_cast<TierSet>(run_.Below(4) * host);
    const ModelBlock* const known = model_.Find(key);
    const ModelBlock before = known == nullptr ? ModelBlock() : *known;
    std::optional<Extent> freed;
    FreedExtent room;
    const ClearedBlock would =
        index_.Clear(Variant(key), Name(key.second), tiers, ClearHow::kDryRun, &freed, &room);
    ASSERT_TRUE(!freed && room.location == 0);
    // With kKeepLastCopy, a block that would leave the index stays.
    const bool keep_last = run_.OneIn(3);
    const TierSet there = TiersOf(before.state);
    const ClearedBlock did =
        index_.Clear(Variant(key), Name(key.second), tiers,
                     keep_last ? ClearHow::kKeepLastCopy : ClearHow::kAll, &freed, &room);
    if (keep_last && (there & tiers) == there) {
      ASSERT_EQ(did.status, Status::kMissing);
      return;
    }
    BlockIndexModel::Left left;
    ASSERT_EQ(did.status, model_.Clear(key, tiers, &left));
    ASSERT_EQ(did.held.value != 0, did.leased && before.location != 0);
    if (did.held.value != 0) {
      ASSERT_EQ(did.held, before.ref);
      ASSERT_EQ(did.leased_location, before.location);
      ++model_.ByRef(did.held).holds;
      holds_.push_back(did.held);
    }
    ASSERT_EQ(freed, left.extent);
    ASSERT_EQ(room.location, left.location);
    ASSERT_TRUE(room.location == 0 || RoomOf(room) == Room(key, left.location));
    ASSERT_TRUE(would.status == did.status && would.tiers == did.tiers &&
                would.pages == did.pages && would.leased == did.leased);
    ASSERT_EQ(did.tiers, TiersOf(before.state) & tiers);
    const bool cleared = did.status == Status::kCleared;
    ASSERT_EQ(did.leased, cleared && before.holds > 0);
    Reached("cleared from one tier only", cleared && did.tiers != TiersOf(before.state));
    Reached("cleared while leased", did.leased);
    Reached("not cleared because it is pinned", did.status == Status::kPinned);
    Reached("not cleared while in use", did.status == Status::kInUse);
    Reached("cleared from HOST, pinned on disk", cleared && before.pinned_disk);
  }
  void CheckEvicted(const BlockIndex::Evicted& gone, const ModelBlock& block) {
    ASSERT_EQ(KeyOf(gone.variant, gone.digest), block.key);
    ASSERT_EQ(gone.extent, block.extent);
    ASSERT_EQ(gone.kept_on_disk, block.state == BlockState::kHostDisk);
    ASSERT_EQ(gone.disk_location, 0u);
    Reached("evicted, kept on disk as a parent", gone.kept_on_disk && block.children > 0);
    Reached("evicted from HOST, pinned on disk", block.pinned_disk);
  }
  void EvictOne() {
    const auto gone = index_.EvictOne(now_s_);
    const auto turn = model_.LeastTurn(BlockIndexModel::TurnInHost);
    ASSERT_EQ(gone.has_value(), turn.has_value());
    if (!gone) return;
    const ModelBlock& block = model_.named().at(KeyOf(gone->variant, gone->digest));
    ASSERT_EQ(BlockIndexModel::TurnInHost(block), turn);
    CheckEvicted(*gone, block);
    Reached("evicted as a parent because no other could leave", turn == 1);
    model_.EvictFromHost(ModelKey(block.key));
  }
  void EvictRef() {
    const auto ref = SomeRef();
    if (!ref) return;
    const ModelBlock& block = model_.ByRef(*ref);
    ASSERT_EQ(index_.WorthInHost(*ref, now_s_).has_value(), block.evictable());
    const auto gone = index_.EvictRef(*ref);
    ASSERT_EQ(gone.has_value(), block.evictable());
    if (!gone) return;
    CheckEvicted(*gone, block);
    model_.EvictFromHost(ModelKey(block.key));
  }
  void EvictOneOfDisk() {
    const auto gone = index_.EvictOneFromDisk(now_s_);
    const auto turn = model_.LeastTurn(BlockIndexModel::TurnOnDisk);
    ASSERT_EQ(gone.has_value(), turn.has_value());
    if (!gone) return;
    const ModelKey key = KeyOf(gone->on_disk.variant, gone->on_disk.digest);
    const ModelBlock& block = model_.named().at(key);
    ASSERT_EQ(BlockIndexModel::TurnOnDisk(block), turn);
    ASSERT_EQ(gone->on_disk.location, block.location);
    ASSERT_EQ(gone->pages, block.extent.pages);
    Reached("evicted from disk as a parent because no other could leave", turn == 1);
    Reached("a disk copy evicted because no other could leave", turn == 2);
    model_.EvictFromDisk(key);
  }
  void EvictDiskRef() {
    const auto ref = SomeRef();
    if (!ref) return;
    const ModelBlock& block = model_.ByRef(*ref);
    ASSERT_EQ(index_.WorthOnDisk(*ref, now_s_).has_value(), block.evictable_from_disk());
    const auto room = index_.EvictRefFromDisk(*ref);
    ASSERT_EQ(room.has_value(), block.evictable_from_disk());
    if (!room) return;
    ASSERT_EQ(RoomOf(*room), Room(block.key, block.location));
    model_.EvictFromDisk(ModelKey(block.key));
  }
  void CountChildren() {
    index_.CountChildren([] { return false; });
    model_.CountChildren();
  }
  // Evicts until no block may leave, so that parents whose children are held or in another tier get
  // their turn.
  void DrainHost() { Drain(&Fuzz::EvictOne); }
  void DrainDisk() { Drain(&Fuzz::EvictOneOfDisk); }
  void Drain(void (Fuzz::*evict)()) {
    for (size_t n = model_.named().size() + 1; n > 0; --n) {
      (this->*evict)();
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  FuzzRun& run_;
  BlockIndex index_{256};  // more events than a step has
  BlockIndexModel model_;
  uint64_t heard_ = 0;  // of its events
  std::map<ModelKey, TierSet> told_;
  std::vector<VariantIndex> variants_;
  std::vector<ModelKey> claims_;
  std::vector<EntryRef> holds_;       // one for each hold, except those of promotions
  std::vector<EntryRef> promotions_;  // under way, each with its hold
  std::vector<EntryRef> rewrites_;    // under way, each with its hold
  std::map<std::string_view, uint64_t> reached_;
  uint32_t now_s_ = 1;
  uint32_t next_page_ = 0;
  uint64_t next_location_ = 1;
};

TEST(BlockIndexFuzz, AgreesWithAMap) {
  FuzzRun run("block_index_fuzz", 30'000);
  Fuzz fuzz(&run);
  for (uint64_t step = 0; step < run.steps(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step << " of seed " << run.seed());
    fuzz.Step();
    if (testing::Test::HasFatalFailure()) return;
    fuzz.Check();
    if (testing::Test::HasFatalFailure()) return;
  }
  if (run.steps() < 30'000) return;
  for (const std::string_view corner : kCorners) {
    EXPECT_GT(fuzz.reached(corner), 0u) << "the fuzz no longer reaches this case: " << corner;
  }
}

}  // namespace
}  // namespace larder
