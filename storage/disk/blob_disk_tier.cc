#include "storage/disk/blob_disk_tier.h"

#include <rocksdb/db.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>

#include <bit>
#include <cstring>
#include <filesystem>

#include "absl/memory/memory.h"
#include "storage/check.h"

namespace larder {
namespace {

constexpr uint32_t kGroups = 4;

std::string BlobKey(uint32_t number, uint32_t group) {
  std::string key(5, '\0');
  const uint32_t big = __builtin_bswap32(number);
  std::memcpy(key.data(), &big, sizeof big);
  key[4] = static_cast<char>(group);
  return key;
}

// Segments [first, end) of a group; its bytes in the payload.
SegmentRange GroupRange(const SegmentTable& table, uint32_t group) {
  const auto segments = static_cast<uint32_t>(table.segments.size());
  SegmentRange range;
  range.first = segments * group / kGroups;
  range.count = segments * (group + 1) / kGroups - range.first;
  uint64_t at = 0;
  for (uint32_t i = 0; i < range.first; ++i)
    at = RoundUp(at + table.segments[i].bytes, kSegmentAlign);
  range.begin = at;
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    at = RoundUp(at + table.segments[i].bytes, kSegmentAlign);
  }
  range.end = std::min(at, table.PayloadBytes().value());
  return range;
}

}  // namespace

struct BlobDiskTier::Blobs {
  std::unique_ptr<rocksdb::DB> db;
};

BlobDiskTier::BlobDiskTier(const Options& options) : options_(options), memory_(options.memory) {}
BlobDiskTier::~BlobDiskTier() = default;

absl::StatusOr<std::unique_ptr<BlobDiskTier>> BlobDiskTier::Open(const Options& options) {
  auto tier = absl::WrapUnique(new BlobDiskTier(options));
  std::filesystem::create_directories(options.directory);
  auto catalog = BlockCatalog::Open({.directory = options.directory + "/catalog",
                                     .disk_bytes_max = MiB(16),
                                     .memory = &tier->memory_,
                                     .faults = &tier->faults_,
                                     .warn = {}});
  if (!catalog.ok()) return catalog.status();
  tier->catalog_ = *std::move(catalog);
  rocksdb::Options blobs;
  blobs.create_if_missing = true;
  blobs.enable_blob_files = true;
  blobs.min_blob_size = 0;
  blobs.blob_file_size = std::min<uint64_t>(MiB(256).value(), options.limit.value() / 8);
  blobs.blob_compression_type = rocksdb::kNoCompression;
  blobs.write_buffer_size = MiB(64).value();
  blobs.max_write_buffer_number = 2;
  blobs.enable_blob_garbage_collection = true;
  blobs.blob_garbage_collection_age_cutoff = 1.0;
  blobs.use_direct_io_for_flush_and_compaction = true;
  blobs.use_direct_reads = true;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(blobs, options.directory + "/blobs", &db);
  if (!status.ok()) return absl::DataLossError(status.ToString());
  tier->blobs_ = std::make_unique<Blobs>();
  tier->blobs_->db.reset(db);
  return tier;
}

void BlobDiskTier::Put(std::span<const NewBlock> blocks, std::span<PutResult> results) {
  rocksdb::WriteOptions no_log;
  no_log.disableWAL = true;
  std::vector<CatalogEntry> entries;
  std::vector<std::string> headers(blocks.size());
  std::vector<size_t> placed;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const NewBlock& block = blocks[i];
    const uint64_t bytes = RoundUp(block.payload.size(), kPageBytes);
    results[i] = {};
    if (ByteCount(bytes) > block_bytes_max()) {
      results[i].status = PutStatus::kTooLarge;
      continue;
    }
    if (!recovered_ || stats().allocated.value() + bytes > options_.limit.value()) {
      results[i].status = PutStatus::kNoRoom;
      continue;
    }
    const uint32_t number = next_++;
    rocksdb::WriteBatch batch;
    for (uint32_t group = 0; group < kGroups; ++group) {
      const SegmentRange range = GroupRange(block.header->table, group);
      (void)batch.Put(
          BlobKey(number, group),
          rocksdb::Slice(reinterpret_cast<const char*>(block.payload.data()) + range.begin,
                         range.end - range.begin));
    }
    if (!blobs_->db->Write(no_log, &batch).ok()) continue;
    results[i] = {PutStatus::kOk, DiskLocation{number}};
    headers[i] = EncodeRecordHeader(*block.header);
    entries.push_back(
        {.key = block.header->key,
         .place = {.extent = {.slab = {}, .page = number, .pages = PagesFor(ByteCount(bytes))},
                   .payload_bytes = ByteCount(block.payload.size()),
                   .parent = block.header->parent},
         .header = std::as_bytes(std::span(headers[i])),
         .tokens = block.tokens});
    placed.push_back(i);
    used_ += bytes;
  }
  const bool kept =
      blobs_->db->Flush(rocksdb::FlushOptions()).ok() && catalog_->Commit(entries).ok();
  for (const size_t i : placed) {
    if (!kept) results[i] = {};
    if (kept) put_bytes_ += blocks[i].payload.size();
  }
  blocks_ += kept ? placed.size() : 0;
  puts_ += kept ? placed.size() : 0;
}

void BlobDiskTier::Erase(std::span<const DiskAddress> blocks) {
  for (const DiskAddress& block : blocks) {
    const auto number = static_cast<uint32_t>(block.location);
    std::optional<Description> known;
    Describe({&block, 1}, {&known, 1});
    if (!known) continue;
    (void)catalog_->Erase({&block.key, 1});
    rocksdb::WriteBatch batch;
    for (uint32_t group = 0; group < kGroups; ++group) (void)batch.Delete(BlobKey(number, group));
    rocksdb::WriteOptions no_log;
    no_log.disableWAL = true;
    (void)blobs_->db->Write(no_log, &batch);
    used_ -= RoundUp(known->header.table.PayloadBytes().value(), kPageBytes);
    --blocks_;
    ++erased_;
  }
  if (stats().allocated.value() > options_.limit.value() * 3 / 4)
    (void)blobs_->db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr);
}

void BlobDiskTier::Describe(std::span<const DiskAddress> blocks,
                            std::span<std::optional<Description>> out) {
  std::vector<BlockKey> keys;
  for (const DiskAddress& block : blocks) keys.push_back(block.key);
  std::vector<std::optional<BlockCatalog::Description>> found(keys.size());
  (void)catalog_->Describe(keys, found);
  for (size_t i = 0; i < keys.size(); ++i) {
    out[i].reset();
    if (!found[i] || blocks[i].location == DiskLocation::kNone) continue;
    auto decoded = DecodeRecordHeaderOf(keys[i], std::as_bytes(std::span(found[i]->header)));
    if (decoded.ok()) out[i] = Description{std::move(decoded->header), std::move(found[i]->tokens)};
  }
}

DiskTier::GetStatus BlobDiskTier::Get(const Read& read) {
  const auto number = static_cast<uint32_t>(read.block.location);
  const SegmentTable& table = read.header->table;
  if (number == 0 || read.block.key != read.header->key) return GetStatus::kMissing;
  const uint64_t base = read.range.begin / kPageBytes * kPageBytes;
  for (uint32_t group = 0; group < kGroups; ++group) {
    const SegmentRange part = GroupRange(table, group);
    if (part.end <= read.range.begin || part.begin >= read.range.end) continue;
    rocksdb::PinnableSlice value;
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    const rocksdb::Status status =
        blobs_->db->Get(options, blobs_->db->DefaultColumnFamily(), BlobKey(number, group), &value);
    if (status.IsNotFound()) return GetStatus::kMissing;
    if (status.IsCorruption() || (status.ok() && value.size() != part.end - part.begin))
      return GetStatus::kDamaged;
    if (!status.ok()) return GetStatus::kFailed;
    const uint64_t from = std::max(part.begin, read.range.begin);
    const uint64_t to = std::min(part.end, read.range.end);
    std::memcpy(read.to.data() + (from - base), value.data() + (from - part.begin), to - from);
  }
  uint64_t at = read.range.begin;
  for (uint32_t i = read.range.first; i < read.range.first + read.range.count; ++i) {
    const Segment& segment = table.segments[i];
    if (HashBytes(read.to.subspan(at - base, segment.bytes)) != segment.xxh3)
      return GetStatus::kDamaged;
    at = RoundUp(at + segment.bytes, kSegmentAlign);
  }
  return GetStatus::kOk;
}

absl::Status BlobDiskTier::Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                   absl::FunctionRef<bool()> stop) {
  bool stopped = false;
  std::vector<DiskAddress> unwanted;
  const absl::Status status =
      catalog_->ForEachPlace([&](const BlockKey& key, const CatalogPlace& place) {
        stopped = stop();
        if (stopped) return false;
        const Entry entry{.key = key,
                          .location = DiskLocation{place.extent.page},
                          .parent = place.parent,
                          .payload_bytes = place.payload_bytes,
                          .disk_bytes = place.extent.bytes()};
        next_ = std::max(next_.load(), place.extent.page + 1);
        ++blocks_;
        used_ += place.extent.bytes().value();
        if (owner_of(entry) == 0) unwanted.push_back({key, entry.location});
        return true;
      });
  if (stopped) return absl::CancelledError("stopped");
  recovered_ = true;
  Erase(unwanted);
  return status;
}

absl::Status BlobDiskTier::PutFact(const std::string& key, const std::string& value) {
  return catalog_->PutFact(key, value);
}
void BlobDiskTier::ForEachFact(
    absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) {
  (void)catalog_->ForEachFact(visit);
}

DiskTier::Stats BlobDiskTier::stats() const {
  Stats stats;
  stats.limit = stats.room = options_.limit;
  stats.used = ByteCount(used_);
  uint64_t bytes = catalog_->disk_bytes().value();
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options_.directory + "/blobs", error)) {
    struct stat found {};
    if (stat(entry.path().c_str(), &found) == 0)
      bytes += static_cast<uint64_t>(found.st_blocks) * 512;
  }
  stats.allocated = ByteCount(bytes);
  stats.blocks = blocks_;
  stats.puts = puts_;
  stats.erased = erased_;
  stats.put_bytes = ByteCount(put_bytes_);
  stats.shards = 1;
  return stats;
}

}  // namespace larder
