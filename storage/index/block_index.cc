#include "storage/index/block_index.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"
#include "storage/index/index_entry.h"

namespace larder {
namespace {

constexpr size_t kWindow = IndexShard::kKeysMax;  // keys that are grouped at a time, on the stack

// A stable counting sort of up to kWindow elements by shard.
template <uint32_t kShards>
class Grouping {
 public:
  template <class ShardOf>
  Grouping(size_t n, ShardOf shard_of) {
    std::array<uint8_t, kWindow> shard;
    for (size_t i = 0; i < n; ++i) {
      shard[i] = static_cast<uint8_t>(shard_of(i));
      ++begin_[shard[i] + 1];
    }
    for (uint32_t s = 0; s < kShards; ++s)
      begin_[s + 1] = static_cast<uint16_t>(begin_[s + 1] + begin_[s]);
    std::array<uint16_t, kShards + 1> next = begin_;
    for (size_t i = 0; i < n; ++i) order_[next[shard[i]]++] = static_cast<uint16_t>(i);
  }
  [[nodiscard]] std::span<const uint16_t> of(uint32_t shard) const {
    return {order_.data() + begin_[shard], order_.data() + begin_[shard + 1]};
  }

 private:
  std::array<uint16_t, kShards + 1> begin_{};
  std::array<uint16_t, kWindow> order_;
};

}  // namespace

BlockIndex::BlockIndex(size_t events_max) : events_(events_max) {
  for (auto& shard : shards_)
    shard = std::make_unique<IndexShard>(variants_, IndexShard::kEntriesMax, &events_);
}

BlockIndex::~BlockIndex() = default;

// ---- variants

absl::StatusOr<VariantIndex> BlockIndex::InternVariant(const Digest& variant_id) {
  return variants_.Intern(variant_id);
}
std::optional<VariantIndex> BlockIndex::FindVariant(const Digest& variant_id) const {
  return variants_.Find(variant_id);
}
Digest BlockIndex::VariantId(VariantIndex variant) const { return variants_.IdOf(variant); }
BlockIndex::VariantTotals BlockIndex::TotalsOf(VariantIndex variant) const {
  return variants_.TotalsOf(variant);
}

std::vector<VariantIndex> BlockIndex::StoredVariants() const {
  std::vector<VariantIndex> stored;
  for (uint32_t v = 0; v < variants_.size(); ++v) {
    const VariantTotals totals = TotalsOf(static_cast<VariantIndex>(v));
    if (totals.blocks + totals.disk_only > 0) stored.push_back(static_cast<VariantIndex>(v));
  }
  return stored;
}

// ---- parents

IndexShard::Raised BlockIndex::RaiseParent(VariantIndex variant, const Digest& child,
                                           uint64_t parent) {
  const IndexShard::Raised raised = shards_[ShardOf(parent)]->RaiseChildren(variant, parent, child);
  if (raised.forked) MarkShared(variant, parent);
  return raised;
}

IndexShard::Raised BlockIndex::RaiseParent(VariantIndex variant, const Digest& child,
                                           const BlockMetadata* metadata) {
  if (metadata == nullptr) return {};
  return RaiseParent(variant, child, IndexHash(variant, metadata->parent()));
}

// Marks the parent and then blocks before it in the chain as shared (ChildCounts::MarkShared), at
// most kSteps of them.
void BlockIndex::MarkShared(VariantIndex variant, uint64_t parent) {
  constexpr int kSteps = 4096;  // a bound, since a client may invent parents, even cycles
  std::optional<uint64_t> next = parent;
  for (int step = 0; next && step < kSteps; ++step)
    next = shards_[ShardOf(*next)]->MarkShared(variant, *next);
}

void BlockIndex::LowerParent(VariantIndex variant, std::optional<uint64_t> parent,
                             std::optional<uint32_t> child_last_use_s) {
  if (parent) shards_[ShardOf(*parent)]->LowerChildren(variant, *parent, child_last_use_s);
}

// ---- entering

// The parent's count is raised before the child enters: if it were raised afterwards, the child
// could already have left again, which only another lookup would show.
BlockIndex::InsertResult BlockIndex::Insert(NewBlock block, uint32_t now_s, EntryRef* ref) {
  LARDER_CHECK(variants_.Contains(block.variant));
  const uint64_t hash = IndexHash(block.variant, block.digest);
  IndexShard::Raised raised = RaiseParent(block.variant, block.digest, block.metadata.get());
  uint32_t slot = 0;
  const IndexShard::EnterResult entered =
      shards_[ShardOf(hash)]->Insert(hash, block, raised, now_s, &slot);
  LowerParent(block.variant, raised.counted_by, std::nullopt);
  if (entered == IndexShard::EnterResult::kEntered) {
    if (ref != nullptr) *ref = MakeRef(ShardOf(hash), slot);
    return InsertResult::kInserted;
  }
  return entered == IndexShard::EnterResult::kFull ? InsertResult::kFull : InsertResult::kDuplicate;
}

BlockIndex::InsertResult BlockIndex::Claim(VariantIndex variant, const Digest& digest,
                                           EntryRef* ref) {
  LARDER_CHECK(variants_.Contains(variant));
  const uint64_t hash = IndexHash(variant, digest);
  uint32_t slot = 0;
  switch (shards_[ShardOf(hash)]->Claim(hash, variant, digest, &slot)) {
    case IndexShard::EnterResult::kEntered:
      break;
    case IndexShard::EnterResult::kDuplicate:
      return InsertResult::kDuplicate;
    case IndexShard::EnterResult::kBusy:
    case IndexShard::EnterResult::kFull:
      return InsertResult::kFull;
  }
  *ref = MakeRef(ShardOf(hash), slot);
  return InsertResult::kInserted;
}

void BlockIndex::Fill(EntryRef claimed, Extent extent,
                      std::unique_ptr<const BlockMetadata> metadata, uint32_t now_s) {
  IndexShard& shard = *shards_[ShardOf(claimed)];
  const IndexShard::Name name = shard.NameOf(SlotOf(claimed));
  IndexShard::Raised raised = RaiseParent(name.variant, name.digest, metadata.get());
  shard.Fill(SlotOf(claimed), extent, std::move(metadata), raised, now_s);
  LowerParent(name.variant, raised.counted_by, std::nullopt);
}

void BlockIndex::Abandon(EntryRef claimed) { shards_[ShardOf(claimed)]->Abandon(SlotOf(claimed)); }

// ---- batches

template <class Visit>
void BlockIndex::ForGroups(VariantIndex variant, std::span<const Digest> digests,
                           Visit visit) const {
  std::array<uint64_t, kWindow> hashes;
  for (size_t at = 0; at < digests.size(); at += kWindow) {
    const std::span<const Digest> keys =
        digests.subspan(at, std::min(kWindow, digests.size() - at));
    for (size_t i = 0; i < keys.size(); ++i) {
      hashes[i] = IndexHash(variant, keys[i]);
      shards_[ShardOf(hashes[i])]->Prefetch(hashes[i]);
    }
    const Grouping<kShards> groups(keys.size(), [&](size_t i) { return ShardOf(hashes[i]); });
    for (uint32_t s = 0; s < kShards; ++s) {
      if (groups.of(s).empty()) continue;
      visit(s,
            IndexShard::Group{
                .variant = variant, .keys = keys, .hashes = hashes, .order = groups.of(s)},
            at);
    }
  }
}

template <class Visit>
void BlockIndex::ForSlots(std::span<const EntryRef> refs, Visit visit) const {
  std::array<uint32_t, kWindow> slots;
  // Visits the last refs first, and IndexShard::Unhold begins with the last slot, so that the tails
  // of chains tend to be evicted first.
  for (size_t end = refs.size(); end > 0;) {
    const size_t n = std::min(kWindow, end);
    end -= n;
    const std::span<const EntryRef> window = refs.subspan(end, n);
    const Grouping<kShards> groups(n, [&](size_t i) { return ShardOf(window[i]); });
    for (uint32_t s = 0; s < kShards; ++s) {
      const std::span<const uint16_t> order = groups.of(s);
      if (order.empty()) continue;
      for (size_t i = 0; i < order.size(); ++i) slots[i] = SlotOf(window[order[i]]);
      visit(s, std::span<const uint32_t>(slots).first(order.size()));
    }
  }
}

void BlockIndex::Lookup(VariantIndex variant, std::span<const Digest> digests,
                        std::span<Presence> out) const {
  LARDER_CHECK(out.size() == digests.size());
  ForGroups(variant, digests, [&](uint32_t s, const IndexShard::Group& group, size_t at) {
    shards_[s]->Lookup(group, out.subspan(at));
  });
}

void BlockIndex::Hold(VariantIndex variant, std::span<const Digest> digests, uint32_t now_s,
                      std::span<Held> out, HoldWhat what) {
  LARDER_CHECK(out.size() == digests.size());
  ForGroups(variant, digests, [&](uint32_t s, const IndexShard::Group& group, size_t at) {
    const std::span<Held> answers = out.subspan(at);
    shards_[s]->Hold(group, what, now_s, answers);
    for (const uint16_t key : group.order) {
      EntryRef& ref = answers[key].ref;
      if (ref.value != 0) ref = MakeRef(s, ref.value);
    }
  });
}

bool BlockIndex::HoldAgain(std::span<const EntryRef> refs) {
  bool full = false;
  std::vector<EntryRef> held;
  held.reserve(refs.size());
  ForSlots(refs, [&](uint32_t s, std::span<const uint32_t> slots) {
    if (full) return;
    const size_t n = shards_[s]->HoldAgain(slots);
    for (const uint32_t slot : slots.first(n)) held.push_back(MakeRef(s, slot));
    full = n < slots.size();
  });
  if (!full) return true;
  std::vector<Extent> freed;
  Unhold(held, &freed);
  LARDER_CHECK(freed.empty());  // the caller still holds them
  return false;
}

void BlockIndex::Unhold(std::span<const EntryRef> refs, std::vector<Extent>* freed,
                        std::vector<FreedExtent>* on_disk) {
  ForSlots(refs, [&](uint32_t s, std::span<const uint32_t> slots) {
    shards_[s]->Unhold(slots, freed, on_disk);
  });
}

// ---- leaving

BlockIndex::Evicted BlockIndex::Finish(IndexShard::Departure gone) {
  LowerParent(gone.block.variant, gone.counted_by, gone.block.last_use_s);
  return std::move(gone.block);
}

bool BlockIndex::FinishDrop(std::optional<IndexShard::Departure> gone, std::optional<Extent>* freed,
                            FreedExtent* on_disk) {
  freed->reset();
  if (!gone) return false;
  const bool doomed = gone->doomed;
  const Evicted block = Finish(std::move(*gone));
  if (doomed) return true;
  if (block.extent.pages > 0) *freed = block.extent;
  if (block.disk_location != 0) {
    LARDER_CHECK(on_disk != nullptr);
    *on_disk = {block.variant, block.digest, block.disk_location};
  }
  return true;
}

bool BlockIndex::Drop(VariantIndex variant, const Digest& digest, std::optional<Extent>* freed,
                      FreedExtent* on_disk) {
  const uint64_t hash = IndexHash(variant, digest);
  return FinishDrop(shards_[ShardOf(hash)]->Drop(hash, variant, digest), freed, on_disk);
}

bool BlockIndex::Drop(EntryRef ref, std::optional<Extent>* freed, FreedExtent* on_disk) {
  return FinishDrop(shards_[ShardOf(ref)]->Drop(SlotOf(ref)), freed, on_disk);
}

bool BlockIndex::DropHostCopy(EntryRef held, std::optional<Extent>* freed, FreedExtent* on_disk) {
  return FinishDrop(shards_[ShardOf(held)]->DropHostCopy(SlotOf(held)), freed, on_disk);
}

ClearedBlock BlockIndex::Clear(VariantIndex variant, const Digest& digest, TierSet tiers,
                               ClearHow how, std::optional<Extent>* freed, FreedExtent* on_disk) {
  const uint64_t hash = IndexHash(variant, digest);
  IndexShard::Clearance clearance =
      shards_[ShardOf(hash)]->Clear(hash, variant, digest, tiers, how);
  if (clearance.held != 0) clearance.block.held = MakeRef(ShardOf(hash), clearance.held);
  *on_disk = clearance.on_disk;
  FinishDrop(std::move(clearance.gone), freed, on_disk);
  return clearance.block;
}

// Looks at a few shards: some in turn, and some whose block to evict was worth least when an
// eviction last looked at them.  Of the shards that it looked at, returns the one whose block to
// evict is worth least, or any shard if none of them has such a block.
template <class LeastOf>
uint32_t BlockIndex::ShardToEvictFrom(LeastSeen& seen, LeastOf least_of) const {
  constexpr uint32_t kInTurn = 2, kSeemLeast = 2;
  const uint32_t turn = seen.turn.fetch_add(1, std::memory_order_relaxed);
  uint32_t from = turn % kShards;
  IndexShard::Candidate least;
  ShardSet looked;
  const auto look = [&](uint32_t shard) {
    const IndexShard::Candidate here = least_of(*shards_[shard]);
    seen.worth[shard].store(here.worth, std::memory_order_relaxed);
    looked.set(shard);
    if (!(here < least)) return;
    least = here;
    from = shard;
  };
  bool copies = false;
  for (uint32_t i = 0; i < kShards; ++i) {
    const uint32_t shard = (turn + i * kOddStep) % kShards;
    // After the first kInTurn shards, looks only at the first shard that has blocks in both tiers
    // (has_copies), and only if none of the shards before it has such blocks.
    const bool has_copies = shards_[shard]->has_copies();
    if (i >= kInTurn && (copies || !has_copies)) continue;
    copies = copies || has_copies;
    look(shard);
  }
  for (uint32_t i = 0; i < kSeemLeast; ++i) {
    const uint32_t shard = seen.Least(turn, looked);
    if (seen.worth[shard].load(std::memory_order_relaxed) >= least.worth) break;
    look(shard);
  }
  return from;
}

uint32_t BlockIndex::LeastSeen::Least(uint32_t from, const ShardSet& but) const {
  uint32_t least = from % kShards;
  double least_worth = IndexShard::Candidate::kNothing;
  for (uint32_t i = 0; i < kShards; ++i) {
    const uint32_t shard = (from + i) % kShards;
    const double here = worth[shard].load(std::memory_order_relaxed);
    if (but.test(shard) || here >= least_worth) continue;
    least = shard;
    least_worth = here;
  }
  return least;
}

std::optional<BlockIndex::Evicted> BlockIndex::EvictOne(uint32_t now_s) {
  const uint32_t first =
      ShardToEvictFrom(host_seen_, [&](IndexShard& shard) { return shard.Least(policy_, now_s); });
  for (const bool parents_too : {false, true}) {
    for (uint32_t i = 0; i < kShards; ++i) {
      if (auto gone = shards_[(first + i) % kShards]->EvictColdest(policy_, parents_too, now_s))
        return Finish(std::move(*gone));
    }
  }
  return std::nullopt;
}

std::optional<BlockIndex::Evicted> BlockIndex::EvictRef(EntryRef ref) {
  auto gone = shards_[ShardOf(ref)]->Evict(SlotOf(ref));
  if (!gone) return std::nullopt;
  return Finish(std::move(*gone));
}

uint64_t BlockIndex::evictable_pages() const {
  uint64_t pages = 0;
  for (const auto& shard : shards_) pages += shard->evictable_pages();
  return pages;
}

bool BlockIndex::PutBack(Evicted gone, EntryRef* ref, EntryRef* held) {
  *held = {};
  if (!gone.kept_on_disk) {
    return Insert({.variant = gone.variant,
                   .digest = gone.digest,
                   .extent = gone.extent,
                   .metadata = std::move(gone.metadata)},
                  gone.last_use_s, ref) == InsertResult::kInserted;
  }
  Held now;
  Hold(gone.variant, {&gone.digest, 1}, gone.last_use_s, {&now, 1}, HoldWhat::kUntouched);
  *ref = *held = now.ref;
  return now.ref.value != 0 && BeginPromote(now.ref) &&
         FinishPromote(now.ref, gone.extent, std::move(gone.metadata), gone.last_use_s);
}

std::optional<double> BlockIndex::WorthInHost(EntryRef ref, uint32_t now_s) const {
  return shards_[ShardOf(ref)]->WorthInHost(SlotOf(ref), policy_, now_s);
}

// ---- disk

BlockIndex::InsertResult BlockIndex::InsertOnDisk(const BlockOnDisk& block, EntryRef same,
                                                  uint32_t now_s, EntryRef* ref) {
  LARDER_CHECK(variants_.Contains(block.variant));
  const uint64_t hash = IndexHash(block.variant, block.digest);
  IndexShard::Raised raised =
      RaiseParent(block.variant, block.digest, IndexHash(block.variant, block.parent));
  uint32_t slot = 0;
  const bool known = same.value != 0 && ShardOf(same) == ShardOf(hash);
  const IndexShard::EnterResult entered = shards_[ShardOf(hash)]->InsertOnDisk(
      hash, block, known ? SlotOf(same) : 0, raised, now_s, &slot);
  LowerParent(block.variant, raised.counted_by, std::nullopt);
  if (entered == IndexShard::EnterResult::kEntered) {
    *ref = MakeRef(ShardOf(hash), slot);
    return InsertResult::kInserted;
  }
  if (entered == IndexShard::EnterResult::kBusy) return InsertResult::kBusy;
  return entered == IndexShard::EnterResult::kFull ? InsertResult::kFull : InsertResult::kDuplicate;
}

void BlockIndex::CountChildren(absl::FunctionRef<bool()> stop) {
  std::array<IndexShard::Uncounted, 256> blocks;
  for (const auto& shard : shards_) {
    for (uint32_t from = 1; from != 0 && !stop();) {
      size_t count = 0;
      from = shard->UncountedFrom(from, blocks, &count);
      for (const IndexShard::Uncounted& block : std::span(blocks).first(count)) {
        IndexShard::Raised raised = RaiseParent(block.variant, block.digest, block.parent);
        shard->CountInParent(block, raised);
        LowerParent(block.variant, raised.counted_by, std::nullopt);
      }
    }
  }
}

std::optional<uint64_t> BlockIndex::SetOnDisk(EntryRef held, uint64_t location) {
  return shards_[ShardOf(held)]->SetOnDisk(SlotOf(held), location);
}

bool BlockIndex::BeginRewrite(EntryRef held, uint64_t location) {
  return shards_[ShardOf(held)]->BeginRewrite(SlotOf(held), location);
}

bool BlockIndex::FinishRewrite(EntryRef held, uint64_t location) {
  return shards_[ShardOf(held)]->FinishRewrite(SlotOf(held), location);
}

bool BlockIndex::ReplaceInHost(EntryRef held, Extent extent,
                               std::unique_ptr<const BlockMetadata>* metadata) {
  return shards_[ShardOf(held)]->ReplaceInHost(SlotOf(held), extent, metadata);
}

bool BlockIndex::BeginPromote(EntryRef held) {
  return shards_[ShardOf(held)]->BeginPromote(SlotOf(held));
}

bool BlockIndex::FinishPromote(EntryRef held, Extent extent,
                               std::unique_ptr<const BlockMetadata> metadata, uint32_t now_s) {
  IndexShard& shard = *shards_[ShardOf(held)];
  const IndexShard::Name name = shard.NameOf(SlotOf(held));
  IndexShard::Raised raised = RaiseParent(name.variant, name.digest, metadata.get());
  const bool finished =
      shard.FinishPromote(SlotOf(held), extent, std::move(metadata), raised, now_s);
  LowerParent(name.variant, raised.counted_by, std::nullopt);
  return finished;
}

void BlockIndex::FailPromote(EntryRef held) { shards_[ShardOf(held)]->FailPromote(SlotOf(held)); }

BlockIndex::Held BlockIndex::LookAt(EntryRef held) const {
  Held now = shards_[ShardOf(held)]->LookAt(SlotOf(held));
  now.ref = held;
  return now;
}

std::optional<EvictedFromDisk> BlockIndex::EvictOneFromDisk(uint32_t now_s) {
  const uint32_t first = ShardToEvictFrom(
      disk_seen_, [&](IndexShard& shard) { return shard.LeastOnDisk(policy_, now_s); });
  for (const bool parents_too : {false, true}) {
    for (uint32_t i = 0; i < kShards; ++i) {
      IndexShard& shard = *shards_[(first + i) % kShards];
      const auto gone = shard.EvictColdestFromDisk(policy_, parents_too, now_s);
      if (!gone) continue;
      LowerParent(gone->block.on_disk.variant, gone->counted_by, gone->last_use_s);
      return gone->block;
    }
  }
  for (uint32_t i = 0; i < kShards; ++i) {
    if (auto gone = shards_[(first + i) % kShards]->DropDiskCopy(policy_, now_s)) return gone;
  }
  return std::nullopt;
}

std::optional<FreedExtent> BlockIndex::EvictRefFromDisk(EntryRef ref) {
  const auto gone = shards_[ShardOf(ref)]->EvictFromDisk(SlotOf(ref));
  if (!gone) return std::nullopt;
  // The block was evicted for its location, not for its worth, so its parent does not become the
  // coldest of its list.
  LowerParent(gone->block.on_disk.variant, gone->counted_by, std::nullopt);
  return gone->block.on_disk;
}

std::optional<double> BlockIndex::WorthOnDisk(EntryRef ref, uint32_t now_s) const {
  return shards_[ShardOf(ref)]->WorthOnDisk(SlotOf(ref), policy_, now_s);
}

// ---- pins

bool BlockIndex::SetPinned(VariantIndex variant, const Digest& digest, Tier tier, bool pinned) {
  LARDER_CHECK(tier == Tier::kHost || tier == Tier::kDisk);
  const uint64_t hash = IndexHash(variant, digest);
  return shards_[ShardOf(hash)]->SetPinned(hash, variant, digest, tier, pinned);
}

bool BlockIndex::IsPinned(VariantIndex variant, const Digest& digest, Tier tier) const {
  LARDER_CHECK(tier == Tier::kHost || tier == Tier::kDisk);
  const uint64_t hash = IndexHash(variant, digest);
  return shards_[ShardOf(hash)]->IsPinned(hash, variant, digest, tier);
}

ByteCount BlockIndex::PinnedBytes(Tier tier) const {
  uint64_t pages = 0;
  for (const auto& shard : shards_) {
    const IndexShard::PinnedPages& pinned = shard->pinned_pages();
    pages += (tier == Tier::kDisk ? pinned.disk : pinned.host).load(std::memory_order_relaxed);
  }
  return ByteCount(pages * kPageBytes);
}

// ---- walking

size_t BlockIndex::Views(Cursor* cursor, std::span<View> out) const {
  size_t count = 0;
  if (cursor->done()) return count;
  cursor->slot = shards_[cursor->shard]->Views(cursor->slot, out, &count);
  if (cursor->slot == 0) *cursor = {.shard = cursor->shard + 1, .slot = 1};
  return count;
}

// ---- totals

uint64_t BlockIndex::blocks() const {
  uint64_t sum = 0;
  for (const auto& shard : shards_) sum += shard->totals().named;
  return sum;
}

uint64_t BlockIndex::doomed() const {
  uint64_t sum = 0;
  for (const auto& shard : shards_) sum += shard->totals().doomed;
  return sum;
}

uint64_t BlockIndex::disk_only() const {
  uint64_t sum = 0;
  for (const auto& shard : shards_) sum += shard->totals().disk_only;
  return sum;
}

ByteCount BlockIndex::memory_bytes() const {
  ByteCount sum = variants_.memory_bytes();
  for (const auto& shard : shards_) sum += shard->totals().memory;
  return sum;
}

ByteCount BlockIndex::metadata_bytes() const {
  ByteCount sum;
  for (const auto& shard : shards_) sum += shard->totals().metadata;
  return sum;
}

void BlockIndex::CheckInvariants() const {
  std::vector<VariantTotals> sums(variants_.size());
  for (const auto& shard : shards_) shard->CheckInvariants(sums);
  for (size_t v = 0; v < sums.size(); ++v) {
    const VariantTotals totals = variants_.TotalsOf(static_cast<VariantIndex>(v));
    LARDER_CHECK(totals.blocks == sums[v].blocks && totals.bytes == sums[v].bytes);
    LARDER_CHECK(totals.disk_only == sums[v].disk_only);
  }
  // The sum of `children` may be less than the number of entries that are counted in a parent: when
  // a parent leaves, its count is lost, but its children are still marked as counted.
  uint64_t children = 0, counted = 0;
  ForEach([&](const View& view) {
    children += view.children;
    counted += view.counted_in_parent ? 1 : 0;
  });
  LARDER_CHECK(children <= counted);
}

}  // namespace larder
