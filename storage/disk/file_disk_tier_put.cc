// FileDiskTier: which shard takes a block.
//
// A start takes the first record of a key that it finds, even if another shard has a newer one.  So
// if one shard has or may have a record of a key, the key may be put only into that shard, whose
// catalog then names only the newer record.  If two shards have or may have a record, or one that
// has not reported its blocks, the key is put into no shard for now (kNotNow).  If a shard has
// erased the key and a loss of power may bring it back, Put first tries to make the erasure
// durable.
//
// These do not count: a record with the bytes of the block, if the block replaces that record
// (instead_of) or the shard has not reported its blocks; and a shard that is closed, or that has
// not reported its blocks and cannot be read.
#include <algorithm>
#include <tuple>

#include "storage/check.h"
#include "storage/disk/file_disk_tier.h"

namespace larder {
namespace {

constexpr uint32_t kAnywhere = UINT32_MAX, kNowhere = UINT32_MAX - 1;  // in place of a shard number

// Returns true for kNoRoom and kFailed, after which another shard may be asked to take the block.
bool FoundNoSpace(const DiskTier::PutResult& result) {
  return result.status == DiskTier::PutStatus::kNoRoom ||
         result.status == DiskTier::PutStatus::kFailed;
}

}  // namespace

std::vector<uint32_t> FileDiskTier::ShardsByRoom() const {
  std::vector<uint32_t> order;
  std::vector<std::tuple<bool, bool, uint64_t>> rank(geometry_.shards);
  for (uint32_t i = 0; i < geometry_.shards; ++i) {
    const ShardRef shard = At(i);
    if (!shard || !shard->told()) continue;
    rank[i] = {shard->healthy(), putting_[i] == 0, shard->free_bytes().value()};
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&rank](uint32_t a, uint32_t b) { return rank[a] > rank[b]; });
  return order;
}

void FileDiskTier::Put(std::span<const NewBlock> blocks, std::span<PutResult> results) {
  LARDER_CHECK(blocks.size() == results.size());
  std::vector<uint32_t> order = ShardsByRoom();
  // Full shards are not asked to take blocks.  The status of blocks that no shard is asked to take
  // is kNoRoom if shards have reported their blocks but all of these are full, otherwise kFailed.
  const bool some_work = !order.empty();
  std::erase_if(order, [&](uint32_t number) {
    const ShardRef shard = At(number);
    if (!shard) return true;
    if (shard->free_bytes().value() > 0) return false;
    shard->NoteNoRoom(blocks.size());
    return true;
  });
  const PutStatus none = some_work && order.empty() ? PutStatus::kNoRoom : PutStatus::kFailed;
  for (PutResult& result : results) result = {.status = none};
  if (!PutUnplaced(blocks, results)) {
    for (PutResult& result : results) {
      if (FoundNoSpace(result)) result = {};
    }
    return;
  }
  if (order.empty()) return;
  const std::vector<uint32_t> homes = HomesOf(blocks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!FoundNoSpace(results[i])) continue;
    const bool full = homes[i] < geometry_.shards && !std::ranges::count(order, homes[i]);
    if (full) results[i] = {.status = PutStatus::kNoRoom};
    if (homes[i] == kNowhere) results[i] = {.status = PutStatus::kNotNow};
  }
  for (const uint32_t number : order) {
    if (std::none_of(results.begin(), results.end(), FoundNoSpace)) return;
    PutTo(number, blocks, homes, results);
  }
}

// A key must not get a second record while its first record is unplaced.
bool FileDiskTier::PutUnplaced(std::span<const NewBlock> blocks, std::span<PutResult> results) {
  for (uint32_t number = 0; number < geometry_.shards; ++number) {
    const ShardRef shard = At(number);
    if (!shard || shard->unplaced() == 0) continue;
    std::vector<DiskShard::PutResult> found(blocks.size());
    if (!shard->PutUnplaced(blocks, found).ok()) return false;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (found[i].status == PutStatus::kFailed) continue;
      results[i].status = found[i].status;
      if (found[i].status == PutStatus::kOk)
        results[i].location = LocationOf(number, found[i].extent);
    }
  }
  return true;
}

std::vector<uint32_t> FileDiskTier::HomesOf(std::span<const NewBlock> blocks) const {
  using Former = DiskShard::Former;
  std::vector<uint32_t> homes(blocks.size(), kAnywhere);
  for (uint32_t number = 0; number < geometry_.shards; ++number) {
    const ShardRef shard = At(number);
    if (!shard) continue;
    std::vector<Extent> instead_of(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      uint32_t its_shard = 0;
      const Extent extent = ExtentOf(blocks[i].instead_of, &its_shard);
      if (blocks[i].instead_of != DiskLocation::kNone && its_shard == number)
        instead_of[i] = extent;
    }
    const std::vector<Former> formers = shard->FormersOf(blocks, instead_of);
    const bool some_erased = std::ranges::count(formers, Former::kErased) > 0;
    const bool erased_for_good = some_erased && shard->catalog().Sync().ok();
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (formers[i] == Former::kNone || (formers[i] == Former::kErased && erased_for_good))
        continue;
      // If two shards may have records of the key, neither may take the block, because a start may
      // find the record in the other shard first.  A shard that has not reported its blocks takes
      // no block yet.
      homes[i] = homes[i] == kAnywhere && shard->told() ? number : kNowhere;
    }
  }
  return homes;
}

// Puts the blocks that no shard has taken yet and that this shard may take.
void FileDiskTier::PutTo(uint32_t number, std::span<const NewBlock> blocks,
                         std::span<const uint32_t> homes, std::span<PutResult> results) {
  const ShardRef shard = At(number);
  if (!shard) return;
  std::vector<NewBlock> now;
  std::vector<size_t> places;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!FoundNoSpace(results[i]) || (homes[i] != kAnywhere && homes[i] != number)) continue;
    now.push_back(blocks[i]);
    places.push_back(i);
  }
  if (now.empty()) return;
  std::vector<DiskShard::PutResult> put(now.size());
  ++putting_[number];
  shard->Put(now, put);
  --putting_[number];
  for (size_t i = 0; i < now.size(); ++i) {
    // If one shard fails to take the block and another has no space for it, the status is kNoRoom.
    if (results[places[i]].status == PutStatus::kFailed || put[i].status != PutStatus::kFailed)
      results[places[i]].status = put[i].status;
    if (put[i].status == PutStatus::kOk)
      results[places[i]].location = LocationOf(number, put[i].extent);
  }
}

}  // namespace larder
