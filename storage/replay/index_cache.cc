#include "storage/replay/index_cache.h"

#include <cstring>
#include <utility>
#include <vector>

#include "storage/check.h"
#include "storage/format/layout.h"
#include "storage/index/block_index.h"

namespace larder::replay {
namespace {

constexpr Extent kOnePage = {.slab = {}, .page = 0, .pages = 1};

// The index chooses a block's shard and cell by the first bytes of its digest, which must be as
// good as random; block ids count up.
Digest DigestOf(BlockId block) {
  Digest digest;
  const uint64_t mixed = (block + 1) * 0x9E3779B97F4A7C15;
  std::memcpy(digest.bytes.data(), &mixed, sizeof mixed);
  std::memcpy(digest.bytes.data() + sizeof mixed, &block, sizeof block);
  return digest;
}

class IndexCache final : public ReplayCache {
 public:
  IndexCache(size_t blocks, Tier tier)
      : capacity_(blocks), tier_(tier), variant_(*index_.InternVariant(DigestOf(0))) {}

  size_t Request(const TracedRequest& request) override {
    const auto now_s = static_cast<uint32_t>(request.at_s);
    std::vector<Digest> digests;
    for (const BlockId block : request.blocks) digests.push_back(DigestOf(block));
    std::vector<BlockIndex::Held> held(digests.size());
    index_.Hold(variant_, digests, now_s, held, HoldWhat::kAnyTier);
    size_t hits = 0;
    while (hits < held.size() && held[hits].ref.value != 0) ++hits;
    std::vector<EntryRef> found, all;
    for (size_t i = 0; i < digests.size(); ++i) {
      const Digest parent = i == 0 ? Digest{} : digests[i - 1];
      if (held[i].ref.value == 0) {
        all.push_back(Enter(digests[i], parent, now_s));
        continue;
      }
      found.push_back(held[i].ref);
      all.push_back(held[i].ref);
      if (tier_ == Tier::kDisk) Promote(held[i].ref, parent, now_s);
    }
    std::vector<Extent> freed;
    std::vector<FreedExtent> on_disk;
    index_.Unhold(found, &freed, &on_disk);
    if (tier_ == Tier::kDisk) {
      for (size_t i = all.size(); i-- > 0;) LARDER_CHECK(index_.EvictRef(all[i])->kept_on_disk);
    }
    while (stored_ > capacity_ && EvictOne(now_s)) --stored_;
    return hits;
  }

 private:
  static std::unique_ptr<const BlockMetadata> Metadata(const Digest& parent) {
    return BlockMetadata::Make(parent, std::vector<uint32_t>(kStepTokens), UniformTable(1, 4096));
  }
  EntryRef Enter(const Digest& digest, const Digest& parent, uint32_t now_s) {
    ++stored_;
    BlockIndex::NewBlock block;
    block.variant = variant_;
    block.digest = digest;
    block.extent = kOnePage;
    block.metadata = Metadata(parent);
    EntryRef ref;
    LARDER_CHECK(index_.Insert(std::move(block), now_s, &ref) ==
                 BlockIndex::InsertResult::kInserted);
    if (tier_ == Tier::kDisk) Spill(digest, ref, now_s);
    return ref;
  }
  void Spill(const Digest& digest, EntryRef ref, uint32_t now_s) {
    BlockIndex::Held held;
    index_.Hold(variant_, {&digest, 1}, now_s, {&held, 1}, HoldWhat::kUntouched);
    LARDER_CHECK(held.ref == ref && index_.SetOnDisk(ref, 1));
    std::vector<Extent> freed;
    index_.Unhold({&ref, 1}, &freed);
  }
  void Promote(EntryRef held, const Digest& parent, uint32_t now_s) {
    LARDER_CHECK(index_.BeginPromote(held) &&
                 index_.FinishPromote(held, kOnePage, Metadata(parent), now_s));
  }
  bool EvictOne(uint32_t now_s) {
    return tier_ == Tier::kDisk ? index_.EvictOneFromDisk(now_s).has_value()
                                : index_.EvictOne(now_s).has_value();
  }

  const size_t capacity_;
  const Tier tier_;
  BlockIndex index_;
  const VariantIndex variant_;
  size_t stored_ = 0;
};

}  // namespace

std::unique_ptr<ReplayCache> MakeIndexCache(size_t blocks, Tier tier) {
  return std::make_unique<IndexCache>(blocks, tier);
}

}  // namespace larder::replay
