#include "storage/disk/memory_disk_tier.h"

#include <algorithm>
#include <cstring>

#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

ByteCount DiskBytes(size_t payload) { return ByteCount(RoundUp(payload, kPageBytes)); }

}  // namespace

MemoryDiskTier::MemoryDiskTier(ByteCount limit, Medium& medium)
    : limit_(limit), medium_(medium), fact_budget_(ByteCount(limit.value() / 32)) {
  MutexLock lock(medium_.mu);
  for (const auto& [key, value] : medium_.facts) fact_budget_.Set(key, value.size());
}

void MemoryDiskTier::Put(std::span<const NewBlock> blocks, std::span<PutResult> results) {
  LARDER_CHECK(blocks.size() == results.size());
  MutexLock lock(medium_.mu);
  for (size_t i = 0; i < blocks.size(); ++i) results[i] = PutOne(blocks[i]);
}

DiskTier::PutResult MemoryDiskTier::PutOne(const NewBlock& block) {
  LARDER_CHECK(block.header->table.hashed);
  LARDER_CHECK(block.payload.size() == block.header->table.PayloadBytes().value());
  const ByteCount bytes = DiskBytes(block.payload.size());
  if (bytes > limit_) return {.status = PutStatus::kTooLarge};
  if (!recovered_) return {};
  for (const uint64_t unplaced : unplaced_) {
    const Record& record = medium_.records.at(unplaced);
    if (record.key != block.header->key) continue;
    if (record.header.table != block.header->table) return {.status = PutStatus::kTaken};
    unplaced_.erase(unplaced);
    return {.status = PutStatus::kOk, .location = DiskLocation{unplaced}};
  }
  if (UsedBytes() + bytes > limit_) return {.status = PutStatus::kNoRoom};
  for (auto& [location, record] : medium_.records)
    record.superseded = record.superseded || record.key == block.header->key;
  const uint64_t location = medium_.next++;
  medium_.records[location] = {.key = block.header->key,
                               .header = *block.header,
                               .tokens = {block.tokens.begin(), block.tokens.end()},
                               .payload = {block.payload.begin(), block.payload.end()}};
  ++counted_.puts;
  counted_.put_bytes += ByteCount(block.payload.size());
  counted_.written_bytes += bytes;
  return {.status = PutStatus::kOk, .location = DiskLocation{location}};
}

absl::Status MemoryDiskTier::Erase(std::span<const DiskAddress> blocks) {
  MutexLock lock(medium_.mu);
  for (const DiskAddress& block : blocks) {
    if (Find(block) == nullptr) continue;
    held_back_.insert(static_cast<uint64_t>(block.location));
    ++counted_.erased;
  }
  if (medium_.keeps_all || (blocks.empty() && !recovered_))
    return absl::UnavailableError("nothing can be erased");
  for (const uint64_t location : held_back_) {
    medium_.records.erase(location);
    unplaced_.erase(location);
  }
  held_back_.clear();
  return absl::OkStatus();
}

absl::Status MemoryDiskTier::Forget(std::span<const DiskAddress> blocks) {
  MutexLock lock(medium_.mu);
  if (medium_.keeps_all) return absl::UnavailableError("nothing can be erased");
  for (const DiskAddress& block : blocks) {
    if (Find(block) != nullptr)
      medium_.records.at(static_cast<uint64_t>(block.location)).forgotten = true;
  }
  return absl::OkStatus();
}

absl::Status MemoryDiskTier::Describe(std::span<const DiskAddress> blocks,
                                      std::span<std::optional<Description>> out) {
  LARDER_CHECK(blocks.size() == out.size());
  MutexLock lock(medium_.mu);
  for (size_t i = 0; i < blocks.size(); ++i) {
    out[i].reset();
    if (const Record* record = Find(blocks[i]); record != nullptr && !record->forgotten)
      out[i] = Description{.header = record->header, .tokens = record->tokens};
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<DiskTier::Description>> MemoryDiskTier::FindUntold(
    const BlockKey& key) {
  MutexLock lock(medium_.mu);
  for (const auto& [location, record] : medium_.records) {
    if (recovered_ && !unplaced_.contains(location)) continue;  // reported before
    if (record.key == key && !record.forgotten && !record.superseded)
      return Description{.header = record.header, .tokens = record.tokens};
  }
  return std::nullopt;
}

DiskTier::GetStatus MemoryDiskTier::Get(const Read& read) {
  LARDER_CHECK(read.to.size() >= PagesOf(read.range).value());
  MutexLock lock(medium_.mu);
  ++counted_.gets;
  const Record* record = Find(read.block);
  if (record == nullptr) return GetStatus::kMissing;
  if (record->unreadable) return GetStatus::kFailed;
  if (record->header != *read.header || record->payload.size() < read.range.end ||
      FirstDamaged(record->payload, record->header.table, read.range) >= 0) {
    ++counted_.damaged;
    return GetStatus::kDamaged;
  }
  std::memcpy(read.to.data() + read.range.begin % kPageBytes,
              record->payload.data() + read.range.begin, read.range.end - read.range.begin);
  counted_.got_bytes += ByteCount(read.range.end - read.range.begin);
  return GetStatus::kOk;
}

absl::Status MemoryDiskTier::Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                     absl::FunctionRef<bool()> stop) {
  std::vector<Entry> entries;
  {
    MutexLock lock(medium_.mu);
    if (!recovered_) {
      absl::erase_if(medium_.records, [](const auto& each) {
        return each.second.forgotten || each.second.superseded;
      });
    }
    for (const auto& [location, record] : medium_.records) {
      if (recovered_ && !unplaced_.contains(location)) continue;  // reported before
      entries.push_back({.key = record.key,
                         .location = DiskLocation{location},
                         .parent = record.header.parent,
                         .payload_bytes = ByteCount(record.payload.size()),
                         .raw_pages = PagesFor(record.header.table.Decoded().PayloadBytes()),
                         .disk_bytes = DiskBytes(record.payload.size())});
    }
  }
  for (const Entry& entry : entries) {
    if (stop()) return absl::CancelledError("stopped while reporting the blocks on disk");
    const uint32_t owner = owner_of(entry);
    {
      MutexLock lock(medium_.mu);
      unplaced_.erase(static_cast<uint64_t>(entry.location));
      if (owner == kUnplaced) unplaced_.insert(static_cast<uint64_t>(entry.location));
    }
    if (owner != 0) continue;
    const DiskAddress unwanted{.key = entry.key, .location = entry.location};
    (void)Erase({&unwanted, 1});
  }
  MutexLock lock(medium_.mu);
  recovered_ = true;
  return absl::OkStatus();
}

absl::Status MemoryDiskTier::PutFacts(std::span<const Fact> facts) {
  MutexLock lock(medium_.mu);
  LARDER_RETURN_IF_ERROR(fact_budget_.Admit(facts));
  for (const Fact& fact : facts) {
    if (fact.value.empty()) {
      medium_.facts.erase(fact.key);
      fact_budget_.Remove(fact.key);
    } else {
      medium_.facts[fact.key] = fact.value;
      fact_budget_.Set(fact.key, fact.value.size());
    }
  }
  return absl::OkStatus();
}

void MemoryDiskTier::ForEachFact(
    absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) {
  absl::btree_map<std::string, std::string> facts;
  {
    MutexLock lock(medium_.mu);
    facts = medium_.facts;
  }
  for (const auto& [key, value] : facts) visit(key, value);
}

const MemoryDiskTier::Record* MemoryDiskTier::Find(const DiskAddress& block) const {
  const auto it = medium_.records.find(static_cast<uint64_t>(block.location));
  const bool there = it != medium_.records.end() && !held_back_.contains(it->first);
  return there && it->second.key == block.key ? &it->second : nullptr;
}

ByteCount MemoryDiskTier::UsedBytes() const {
  ByteCount used;
  for (const auto& [location, record] : medium_.records) used += DiskBytes(record.payload.size());
  return used;
}

ByteCount MemoryDiskTier::free_bytes() const {
  MutexLock lock(medium_.mu);
  return recovered_ ? limit_ - UsedBytes() : ByteCount(0);
}

DiskTier::Stats MemoryDiskTier::stats() const {
  MutexLock lock(medium_.mu);
  Stats stats = counted_;
  stats.limit = stats.room = limit_;
  stats.used = stats.allocated = UsedBytes();
  stats.blocks = medium_.records.size() - held_back_.size();
  stats.unplaced = unplaced_.size();
  stats.facts = fact_budget_.uses();
  return stats;
}

}  // namespace larder
