// A small store over real slabs, and blocks to put into it.  For tests only.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "storage/check.h"
#include "storage/clock.h"
#include "storage/disk/disk_tier.h"
#include "storage/format/block_key.h"
#include "storage/format/layout.h"
#include "storage/memory/slab_pool.h"
#include "storage/store/block_store.h"

namespace larder::testing {

inline std::unique_ptr<SlabPool> MakePool(ByteCount bytes, ByteCount slab_bytes) {
  SlabPool::Options options;
  options.bytes = bytes;
  options.slab_bytes = slab_bytes;
  options.lock_memory = false;
  options.huge_pages = false;
  auto pool = SlabPool::Create(options);
  LARDER_CHECK(pool.ok());
  LARDER_CHECK((*pool)->PopulateAll().ok());
  return *std::move(pool);
}

inline VariantSpec TestVariant(uint32_t block_tokens = 16, uint32_t layers = 1) {
  VariantSpec v;
  v.dtype = "f16";
  v.layout = "test/rows/1";
  v.block_tokens = block_tokens;
  v.layers = layers;
  return v;
}

// Returns `n` tokens that depend only on the seed: equal seeds give equal blocks.
inline std::vector<uint32_t> TestTokens(uint32_t seed, uint32_t n = 16) {
  std::vector<uint32_t> t(n);
  for (uint32_t i = 0; i < n; ++i) t[i] = seed * 1000 + i;
  return t;
}

// Does what a start does: enters everything that is on `tier` into `store`.  Returns the number of
// blocks.  REQUIRES: a block that is in HOST already has the same bytes on disk.
inline size_t RecoverInto(BlockStore& store, DiskTier& tier) {
  size_t found = 0;
  const absl::Status status = tier.Recover(
      [&](const DiskTier::Entry& entry) {
        ++found;
        BlockIndex::Held same;
        if (const auto variant = store.index().FindVariant(entry.key.variant))
          same = store.HoldUntouched(*variant, entry.key.digest);
        const EntryRef ref =
            store.EnterFromDisk(entry.key.variant, entry.key.digest, entry.parent,
                                static_cast<uint64_t>(entry.location), entry.raw_pages, same.ref);
        if (same.ref.value != 0) store.Unhold({&same.ref, 1});
        return ref.value;
      },
      [] { return false; });
  LARDER_CHECK(status.ok());
  return found;
}

class StoreFixture {
 public:
  explicit StoreFixture(ByteCount pool_bytes = MiB(8), ByteCount slab_bytes = MiB(2),
                        BlockStore::Options options = {})
      : pool_(MakePool(pool_bytes, slab_bytes)),
        store_(std::make_unique<BlockStore>(options, *pool_, clock_)) {
    for (uint32_t i = 0; i < pool_->slab_count(); ++i)
      store_->AddSlab(SlabId(static_cast<uint16_t>(i)));
    variant_ = *store_->RegisterVariant(TestVariant());
  }

  [[nodiscard]] BlockStore& store() { return *store_; }
  [[nodiscard]] ManualClock& clock() { return clock_; }
  [[nodiscard]] VariantIndex variant() const { return variant_; }

  // Reserves an extent, fills it with `fill` and publishes the block.  Its digest follows from
  // `parent` and `seed`.
  BlockStatus Put(const Digest& parent, uint32_t seed, uint32_t bytes, std::byte fill,
                  Digest* digest = nullptr, const Digest& content = {},
                  const BlockWriter& writer = {}) {
    const ByteCount size(bytes);
    BlockStore::ReserveResult r = store_->Reserve({&size, 1}, pool_->total_bytes());
    if (r.status != BlockStatus::kOk) return r.status;
    const std::vector<uint32_t> tokens = TestTokens(seed);
    const Digest name = Chain(parent, tokens).back();
    const std::span<std::byte> to = store_->Bytes(r.reservation.extent(0)).first(bytes);
    std::memset(to.data(), static_cast<int>(fill), to.size());
    SegmentTable table = UniformTable(1, bytes);
    HashPayload(to, &table);
    const BlockStatus status = store_->Publish(
        r.reservation, 0, {variant_, name, parent, tokens, &table, content, writer});
    if (digest != nullptr) *digest = name;  // `digest` may be `parent`
    return status;
  }

 private:
  ManualClock clock_;
  std::unique_ptr<SlabPool> pool_;
  std::unique_ptr<BlockStore> store_;
  VariantIndex variant_ = VariantIndex::kNone;
};

}  // namespace larder::testing
