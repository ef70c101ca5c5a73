// A model of BlockIndex as a std::map: each operation that block_index_fuzz.cc gives the index, in
// the terms of block_index.h.
//
// The model is exact except for evictions that choose a block: for these it knows which blocks may
// leave, but not which one must. A parent is known by its name, as in the index.  If a parent
// leaves and another block comes under its name, that block counts children from zero; a child that
// the former parent counted lowers the new count when it leaves, if it is above zero.
// Ownership: a local variable of one test.
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "storage/index/block_index.h"

namespace larder {

using ModelKey = std::pair<uint64_t, uint64_t>;  // variant, name

inline Digest Name(uint64_t i) {
  Digest digest;
  // Some names share their first half, so that tags and cells collide.  No name has the hash 0.
  const uint64_t words[2] = {(i / 4 + 100) * 0x9E3779B97F4A7C15, i};
  std::memcpy(digest.bytes.data(), words, sizeof words);
  return digest;
}
inline uint64_t NumberOf(const Digest& digest) {
  uint64_t number;
  std::memcpy(&number, digest.bytes.data() + 8, sizeof number);
  return number;
}
inline ModelKey KeyOf(VariantIndex variant, const Digest& digest) {
  return {static_cast<uint64_t>(variant), NumberOf(digest)};
}

// Cases that a run of some length must have reached, so that the instructions cannot come to miss
// one unnoticed.
inline constexpr std::array<std::string_view, 23> kCorners = {
    "doomed",
    "disk space of a doomed block",
    "published while on disk alone",
    "claimed while found on disk",
    "in HOST while found on disk",
    "damaged in HOST, kept on disk",
    "promoted",
    "not promoted",
    "dropped while promoted",
    "published while promoted",
    "evicted, kept on disk as a parent",
    "evicted as a parent because no other could leave",
    "evicted from disk as a parent because no other could leave",
    "a disk copy evicted because no other could leave",
    "evicted from HOST, pinned on disk",
    "published while on disk alone, pinned in HOST",
    "cleared from one tier only",
    "cleared while leased",
    "not cleared because it is pinned",
    "not cleared while in use",
    "cleared from HOST, pinned on disk",
    "rewritten",
    "dropped while being rewritten"};

struct ModelBlock {
  ModelKey key;
  EntryRef ref;
  BlockState state = BlockState::kAbsent;
  Extent extent;  // for a block on disk alone, only the number of its pages is meaningful
  bool metadata = false;
  std::optional<uint64_t> parent;      // as far as the index knows it
  std::optional<uint64_t> counted_by;  // the parent whose `children` counts it
  uint16_t holds = 0, children = 0;
  bool pinned_host = false, pinned_disk = false;
  uint64_t location = 0;

  [[nodiscard]] bool in_a_tier() const { return InHost(state) || OnDiskAlone(state); }
  [[nodiscard]] bool idle() const { return holds == 0 && !pinned_host; }
  // A block that is pinned on disk may leave HOST once it is on disk.
  [[nodiscard]] bool evictable() const {
    return idle() &&
           (state == BlockState::kHostDisk || (state == BlockState::kHost && !pinned_disk));
  }
  [[nodiscard]] bool evictable_from_disk() const {
    return idle() && !pinned_disk && (state == BlockState::kHostDisk || state == BlockState::kDisk);
  }
};

class BlockIndexModel {
 public:
  using Result = BlockIndex::InsertResult;
  using Blocks = std::map<ModelKey, ModelBlock>;
  // What a block that has left returns.
  struct Left {
    std::optional<Extent> extent;
    uint64_t location = 0;
  };

  [[nodiscard]] const Blocks& named() const { return named_; }
  [[nodiscard]] size_t doomed() const { return doomed_.size(); }
  [[nodiscard]] ModelBlock* Find(const ModelKey& key) {
    const auto block = named_.find(key);
    return block == named_.end() ? nullptr : &block->second;
  }
  // REQUIRES: the block is named, or held.
  [[nodiscard]] ModelBlock& ByRef(EntryRef ref) {
    if (const auto doomed = doomed_.find(ref.value); doomed != doomed_.end()) return doomed->second;
    return std::find_if(named_.begin(), named_.end(),
                        [&](const auto& item) { return item.second.ref == ref; })
        ->second;
  }

  // ---- Entering.  `parent` nullopt means without metadata.  The caller notes the reference of a
  // new block.
  Result Insert(const ModelKey& key, const Extent& extent, std::optional<uint64_t> parent) {
    if (Find(key) != nullptr) return Result::kDuplicate;
    BecomeHost(AddOrFind(key), extent, parent);
    return Result::kInserted;
  }
  Result Claim(const ModelKey& key) {
    if (Find(key) != nullptr) return Result::kDuplicate;
    AddOrFind(key).state = BlockState::kReserved;
    return Result::kInserted;
  }
  void Fill(const ModelKey& key, const Extent& extent, std::optional<uint64_t> parent) {
    BecomeHost(named_.at(key), extent, parent);
  }
  void Abandon(const ModelKey& key) { named_.erase(key); }
  Result InsertOnDisk(const ModelKey& key, uint32_t pages, uint64_t parent, uint64_t location,
                      EntryRef same) {
    ModelBlock& block = AddOrFind(key);
    if (block.state == BlockState::kReserved) return Result::kBusy;
    if (block.state == BlockState::kHost && block.ref != same) return Result::kBusy;
    if (block.state != BlockState::kAbsent && block.state != BlockState::kHost)
      return Result::kDuplicate;
    block.location = location;
    if (block.state == BlockState::kHost) {
      block.state = BlockState::kHostDisk;
      return Result::kInserted;
    }
    block.parent = parent;
    block.counted_by = Raise(key.first, parent);
    block.state = BlockState::kDisk;
    block.extent = {.slab = {}, .page = 0, .pages = pages};
    return Result::kInserted;
  }

  void CountChildren() {
    for (auto& [key, block] : named_) {
      if (!block.in_a_tier() || block.counted_by) continue;
      block.counted_by = Raise(key.first, block.parent);
    }
  }

  // ---- A held block.
  std::optional<uint64_t> SetOnDisk(EntryRef ref, uint64_t location) {
    ModelBlock& block = ByRef(ref);
    if (!InHost(block.state)) return std::nullopt;
    block.state = BlockState::kHostDisk;
    return std::exchange(block.location, location);
  }
  bool BeginRewrite(EntryRef ref, uint64_t location) {
    ModelBlock& block = ByRef(ref);
    if (block.holds > 1 || block.location != location) return false;
    if (block.state == BlockState::kHostDisk) return true;
    return BeginPromote(ref);
  }
  bool FinishRewrite(EntryRef ref, uint64_t location) {
    ModelBlock& block = ByRef(ref);
    FailPromote(ref);
    if (location == 0) return false;
    if (block.state != BlockState::kDisk && block.state != BlockState::kHostDisk) return false;
    block.location = location;
    return true;
  }
  bool BeginPromote(EntryRef ref) {
    ModelBlock& block = ByRef(ref);
    if (block.state != BlockState::kDisk) return false;
    block.state = BlockState::kPromoting;
    return true;
  }
  bool FinishPromote(EntryRef ref, const Extent& extent, uint64_t parent) {
    ModelBlock& block = ByRef(ref);
    if (block.state != BlockState::kPromoting) return false;
    BecomeHost(block, extent, parent);
    return true;
  }
  void FailPromote(EntryRef ref) {
    ModelBlock& block = ByRef(ref);
    if (block.state == BlockState::kPromoting) block.state = BlockState::kDisk;
  }
  Left Unhold(EntryRef ref) {
    ModelBlock& block = ByRef(ref);
    if (--block.holds > 0 || block.state != BlockState::kDoomed) return {};
    const Left left = LeftBy(block);
    doomed_.erase(ref.value);
    return left;
  }

  // ---- Leaving.
  //
  // Removes the name.  If the block is held, its extent and location are returned with its last
  // hold.
  Left Leave(const ModelKey& key) {
    ModelBlock block = named_.at(key);
    named_.erase(key);
    Lower(key.first, std::exchange(block.counted_by, std::nullopt));
    if (OnDiskAlone(block.state)) block.extent = {};
    if (block.holds == 0) return LeftBy(block);
    block.state = BlockState::kDoomed;
    doomed_[block.ref.value] = block;
    return {};
  }
  // A block that is also on disk stays in the index under a new reference, which the caller notes.
  // Its copy in HOST becomes that of a doomed block.  REQUIRES: the block is in HOST and held.
  void DropHostCopy(const ModelKey& key) {
    ModelBlock& block = named_.at(key);
    if (block.state != BlockState::kHostDisk) {
      Leave(key);
      return;
    }
    ModelBlock& damaged = doomed_[block.ref.value] = block;
    damaged.state = BlockState::kDoomed;
    damaged.location = 0;
    block.ref = {};
    block.holds = 0;
    EvictFromHost(key);
  }
  // A block that is also on disk stays in the index, as a child and as a parent.
  void EvictFromHost(const ModelKey& key) {
    ModelBlock& block = named_.at(key);
    if (block.state != BlockState::kHostDisk) {
      Leave(key);
      return;
    }
    block.state = BlockState::kDisk;
    block.metadata = false;
  }
  void EvictFromDisk(const ModelKey& key) {
    ModelBlock& block = named_.at(key);
    if (block.state != BlockState::kHostDisk) {
      Leave(key);
      return;
    }
    block.state = BlockState::kHost;
    block.location = 0;
  }
  // Removes the block from these tiers, unless it is pinned to one that it would leave, or is held
  // and would stay in another.
  ClearedBlock::Status Clear(const ModelKey& key, TierSet tiers, Left* left) {
    using Status = ClearedBlock::Status;
    ModelBlock* const block = Find(key);
    if (block == nullptr || !block->in_a_tier()) return Status::kMissing;
    const bool in_host = InHost(block->state), on_disk = block->state != BlockState::kHost;
    const bool from_host = in_host && (tiers & TierBit(Tier::kHost)) != 0;
    const bool from_disk = on_disk && (tiers & TierBit(Tier::kDisk)) != 0;
    if (!from_host && !from_disk) return Status::kMissing;
    const bool whole = from_host == in_host && from_disk == on_disk;
    if (block->pinned_host || (block->pinned_disk && (whole || from_disk))) return Status::kPinned;
    if (whole) {
      *left = Leave(key);
      return Status::kCleared;
    }
    if (block->holds > 0) return Status::kInUse;
    if (from_host) {
      left->extent = LeftBy(*block).extent;
      EvictFromHost(key);
    } else {
      left->location = block->location;
      EvictFromDisk(key);
    }
    return Status::kCleared;
  }

  // ---- The turn of a block to leave.  Only blocks of the lowest turn may leave; nullopt means
  // that a block may not.
  using Turn = std::optional<int>;
  // A child leaves the index before its parent.  A block that is also on disk does not leave the
  // index.
  [[nodiscard]] static Turn TurnInHost(const ModelBlock& block) {
    if (!block.evictable()) return std::nullopt;
    return block.state == BlockState::kHost && block.children > 0 ? 1 : 0;
  }
  // The disk copy of a block that is in HOST is evicted last.
  [[nodiscard]] static Turn TurnOnDisk(const ModelBlock& block) {
    if (!block.evictable_from_disk()) return std::nullopt;
    if (block.state == BlockState::kHostDisk) return 2;
    return block.children > 0 ? 1 : 0;
  }
  [[nodiscard]] Turn LeastTurn(Turn (*turn_of)(const ModelBlock&)) const {
    Turn least;
    for (const auto& [key, block] : named_) {
      const Turn turn = turn_of(block);
      if (turn && (!least || *turn < *least)) least = turn;
    }
    return least;
  }

 private:
  ModelBlock& AddOrFind(const ModelKey& key) {
    ModelBlock& block = named_[key];
    block.key = key;
    return block;
  }
  static Left LeftBy(const ModelBlock& block) {
    Left left{.extent = {}, .location = block.location};
    if (block.extent.pages > 0) left.extent = block.extent;
    return left;
  }

  // Finds the parent in any tier, unless it is only claimed.
  ModelBlock* FindParent(uint64_t variant, uint64_t name) {
    ModelBlock* const parent = Find({variant, name});
    return parent != nullptr && parent->in_a_tier() ? parent : nullptr;
  }
  std::optional<uint64_t> Raise(uint64_t variant, std::optional<uint64_t> parent) {
    ModelBlock* const counting = parent ? FindParent(variant, *parent) : nullptr;
    if (counting == nullptr) return std::nullopt;
    ++counting->children;
    return parent;
  }
  void Lower(uint64_t variant, std::optional<uint64_t> parent) {
    ModelBlock* const counted = parent ? FindParent(variant, *parent) : nullptr;
    if (counted != nullptr && counted->children > 0) --counted->children;
  }
  // The new parent is raised before the parent that counted the block until now is lowered.
  // Usually both are the same.
  void BecomeHost(ModelBlock& block, const Extent& extent, std::optional<uint64_t> parent) {
    const auto counted_before = block.counted_by;
    block.parent = parent;
    block.counted_by = Raise(block.key.first, parent);
    Lower(block.key.first, counted_before);
    block.state = OnDiskAlone(block.state) ? BlockState::kHostDisk : BlockState::kHost;
    block.extent = extent;
    block.metadata = parent.has_value();
  }

  Blocks named_;
  std::map<uint32_t, ModelBlock> doomed_;  // by ref
};

}  // namespace larder
