// The methods of DiskShard for recovery at a start, for unplaced blocks (which the caller of
// Recover could not take), and for finding the record that the shard already has of a key.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "storage/disk/disk_shard.h"
#include "storage/format/record.h"
#include "storage/status_macros.h"

namespace larder {

using PutStatus = DiskTier::PutStatus;

namespace {

// Returns true if `record` has the same segment table as `header`, and so the same payload: the
// tables contain the hashes of all segments.  Other fields of the header may be missing in records
// that an older daemon wrote.  Returns false if the record's header is damaged.
bool IsOf(const RecordHeader& header, const BlockCatalog::Description& record) {
  const auto decoded = DecodeRecordHeaderOf(header.key, std::as_bytes(std::span(record.header)));
  return decoded.ok() && decoded->header.table == header.table;
}

std::vector<BlockKey> KeysOf(std::span<const DiskTier::NewBlock> blocks) {
  std::vector<BlockKey> keys;
  keys.reserve(blocks.size());
  for (const DiskTier::NewBlock& block : blocks) keys.push_back(block.header->key);
  return keys;
}

}  // namespace

absl::StatusOr<std::vector<DiskShard::Entry>> DiskShard::Recover() {
  std::vector<Entry> entries;
  LARDER_RETURN_IF_ERROR(
      catalog_->ForEachPlace([&](const BlockKey& key, const CatalogPlace& place) {
        entries.push_back({key, place});
        return true;
      }));
  std::vector<Room> misplaced;  // their pages belong to another block, or to no file
  {
    MutexLock lock(mu_);
    std::erase_if(entries, [&](const Entry& entry) LARDER_NO_THREAD_SAFETY_ANALYSIS {
      if (allocator_.AllocateAt(entry.place.extent)) return false;
      misplaced.push_back({entry.key, entry.place.extent});
      return true;
    });
    blocks_ = entries.size();
    share_.Found(entries.size());
    recovered_ = true;
    NoteFree();
  }
  damaged_ += misplaced.size();
  if (!misplaced.empty() && !catalog_->Erase(misplaced).ok()) ++catalog_failures_;
  return entries;
}

void DiskShard::SetOwner(const Extent& extent, uint32_t owner) {
  MutexLock lock(mu_);
  // Another thread may have erased the block as soon as the caller's index had it.
  if (allocator_.IsLive(extent)) SetOwnerLocked(extent, owner);
}

void DiskShard::SetOwnerLocked(const Extent& extent, uint32_t owner) {
  if (allocator_.owner(extent) == DiskTier::kUnplaced) {
    --unplaced_;
    unplaced_bytes_ -= extent.bytes().value();
  }
  if (owner == DiskTier::kUnplaced) {
    ++unplaced_;
    unplaced_bytes_ += extent.bytes().value();
  }
  allocator_.SetOwner(extent, owner);
}

bool DiskShard::IsUnplaced(const Extent& extent) const {
  MutexLock lock(mu_);
  return allocator_.IsLive(extent) && allocator_.owner(extent) == DiskTier::kUnplaced;
}

// told_ is read before the catalog: a block that is reported between the two reads then counts as
// not reported yet, which does no harm.
absl::StatusOr<std::optional<DiskTier::Description>> DiskShard::FindUntold(const BlockKey& key) {
  const bool told = told_;
  std::optional<DiskTier::Description> found;
  if (told && unplaced_ == 0) return found;
  std::optional<CatalogPlace> place;
  if (absl::Status status = catalog_->Places({&key, 1}, {&place, 1}); !status.ok()) {
    ++catalog_failures_;
    return status;
  }
  if (!place || (told && !IsUnplaced(place->extent))) return found;
  LARDER_RETURN_IF_ERROR(Describe({&key, 1}, {&found, 1}));
  return found;
}

// The owner words in `allocator_` say which blocks are unplaced, so no list of unplaced blocks is
// kept between two calls.
absl::Status DiskShard::TellUnplaced(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                     absl::FunctionRef<bool()> stop) {
  std::vector<Entry> entries;
  LARDER_RETURN_IF_ERROR(
      catalog_->ForEachPlace([&](const BlockKey& key, const CatalogPlace& place) {
        if (IsUnplaced(place.extent)) entries.push_back({key, place});
        return !stop();
      }));
  std::vector<Room> unwanted;
  for (const Entry& entry : entries) {
    if (stop()) return absl::CancelledError("stopped while reporting the unplaced blocks on disk");
    MutexLock placing(placing_mu_);
    if (!IsUnplaced(entry.place.extent)) continue;  // the block was put or erased meanwhile
    const uint32_t owner = owner_of(entry);
    if (owner == DiskTier::kUnplaced) continue;
    SetOwner(entry.place.extent, owner);
    if (owner == 0) unwanted.push_back({entry.key, entry.place.extent});
  }
  (void)Erase(unwanted);  // if this fails, the next start may find these blocks again
  return absl::OkStatus();
}

absl::Status DiskShard::PutUnplaced(std::span<const DiskTier::NewBlock> blocks,
                                    std::span<PutResult> results) {
  const std::vector<BlockKey> keys = KeysOf(blocks);
  std::vector<std::optional<CatalogPlace>> places(keys.size());
  MutexLock placing(placing_mu_);
  LARDER_RETURN_IF_ERROR(catalog_->Places(keys, places));
  std::vector<std::optional<BlockCatalog::Description>> known(keys.size());
  LARDER_RETURN_IF_ERROR(catalog_->Describe(keys, known));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!places[i] || !IsUnplaced(places[i]->extent)) continue;
    if (known[i] && IsOf(*blocks[i].header, *known[i])) {
      SetOwner(places[i]->extent, ExtentAllocator::kNoOwner);
      results[i] = {.status = PutStatus::kOk, .extent = places[i]->extent};
    } else {
      results[i] = {.status = PutStatus::kTaken, .extent = {}};
    }
  }
  return absl::OkStatus();
}

// The three checks (catalog, held_back_, MayComeBack) are made in this order so that they do not
// miss a key that another thread erases meanwhile, unless its erasure is already durable.
std::vector<DiskShard::Former> DiskShard::FormersOf(std::span<const DiskTier::NewBlock> blocks,
                                                    std::span<const Extent> instead_of) {
  const bool told = told_;
  const std::vector<BlockKey> keys = KeysOf(blocks);
  std::vector<Former> formers(keys.size(), Former::kNone);
  std::vector<std::optional<CatalogPlace>> places(keys.size());
  if (!catalog_->Places(keys, places).ok()) {
    ++catalog_failures_;
    if (told) formers.assign(keys.size(), Former::kThere);
    return formers;
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!places[i] || places[i]->extent == instead_of[i]) continue;
    if (told || !HasBytesOf(blocks[i])) formers[i] = Former::kThere;
  }
  {
    MutexLock lock(mu_);
    absl::flat_hash_set<BlockKey> held_back;
    for (const auto& [room, ours] : held_back_) held_back.insert(room.key);
    for (size_t i = 0; i < keys.size() && !held_back.empty(); ++i) {
      if (held_back.contains(keys[i])) formers[i] = Former::kThere;
    }
  }
  const std::vector<bool> may_come_back = catalog_->MayComeBack(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (formers[i] == Former::kNone && may_come_back[i]) formers[i] = Former::kErased;
  }
  return formers;
}

bool DiskShard::HasBytesOf(const DiskTier::NewBlock& block) {
  std::optional<BlockCatalog::Description> known;
  return catalog_->Describe({&block.header->key, 1}, {&known, 1}).ok() && known &&
         IsOf(*block.header, *known);
}

}  // namespace larder
