#include "storage/disk/disk_shard.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/disk/page_buffer.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

using PutStatus = DiskTier::PutStatus;
using GetStatus = DiskTier::GetStatus;

constexpr Duration kBetweenTriesToGrow = std::chrono::seconds(1);
constexpr Duration kBetweenWarnings = std::chrono::minutes(1);
constexpr Duration kBetweenTriesToErase = std::chrono::seconds(1);
// One call to the catalog erases the keys of at most this many held-back extents (HoldBack); many
// more may have accumulated over hours.
constexpr size_t kErasuresAtOnce = 1024;

bool IsWhole(const SegmentRange& range, const SegmentTable& table) {
  return range.first == 0 && range.count == table.segments.size();
}

// Returns true if every segment of the range matches its hash.  `pages` begins at the page that
// holds the first byte of the range.
bool Intact(std::span<const std::byte> pages, const SegmentTable& table,
            const SegmentRange& range) {
  SegmentCursor at(range.begin % kPageBytes);
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    const Segment& segment = table.segments[i];
    if (HashBytes(at.Next(pages, segment.bytes)) != segment.xxh3) return false;
  }
  return true;
}

bool IsHeader(std::span<const std::byte> pages, std::string_view header) {
  return std::memcmp(pages.data(), header.data(), header.size()) == 0 &&
         std::all_of(pages.begin() + static_cast<std::ptrdiff_t>(header.size()), pages.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

struct DiskShard::Writing {
  Writing(std::span<const DiskTier::NewBlock> the_blocks, std::span<PutResult> the_results)
      : blocks(the_blocks), results(the_results), headers(the_blocks.size()) {
    for (size_t i = 0; i < blocks.size(); ++i) headers[i] = EncodeRecordHeader(*blocks[i].header);
  }
  [[nodiscard]] uint32_t HeaderPages(size_t i) const {
    return PagesFor(ByteCount(headers[i].size()));
  }
  [[nodiscard]] uint32_t Pages(size_t i) const {
    return HeaderPages(i) + PagesFor(ByteCount(blocks[i].payload.size()));
  }
  [[nodiscard]] bool open(size_t i) const { return results[i].status == PutStatus::kOk; }
  // Returns the indices of the blocks whose status is kOk, in the order of their extents on disk.
  [[nodiscard]] std::vector<size_t> Open() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < results.size(); ++i) {
      if (open(i)) out.push_back(i);
    }
    std::sort(out.begin(), out.end(), [this](size_t a, size_t b) {
      const Extent& x = results[a].extent;
      const Extent& y = results[b].extent;
      return x.slab != y.slab ? x.slab < y.slab : x.page < y.page;
    });
    return out;
  }
  // Returns true if the extent of block b begins where the extent of block a ends.
  [[nodiscard]] bool Adjacent(size_t a, size_t b) const {
    const Extent& x = results[a].extent;
    const Extent& y = results[b].extent;
    return x.slab == y.slab && x.page + x.pages == y.page;
  }

  const std::span<const DiskTier::NewBlock> blocks;
  const std::span<PutResult> results;  // kOk: the block has an extent and has not failed
  std::vector<std::string> headers;
  std::vector<Room> failed;  // extents to be freed
};

DiskShard::DiskShard(const Options& options, std::unique_ptr<DataFiles> files,
                     std::unique_ptr<BlockCatalog> catalog)
    : options_(options),
      files_(std::move(files)),
      catalog_(std::move(catalog)),
      share_(*catalog_, options.catalog_bytes_max),
      allocator_(options.file_bytes) {
  for (uint32_t file = 0; file < files_->count(); ++file)
    allocator_.AddSlab(static_cast<SlabId>(file));
}

absl::StatusOr<std::unique_ptr<DiskShard>> DiskShard::Open(const Options& options) {
  LARDER_ASSIGN_OR_RETURN(
      auto catalog, BlockCatalog::Open({.directory = absl::StrCat(options.directory, "/catalog"),
                                        .disk_bytes_max = options.catalog_bytes_max,
                                        .memory = options.memory,
                                        .faults = options.faults,
                                        .warn = options.warn}));
  LARDER_ASSIGN_OR_RETURN(auto files, DataFiles::Open({.directory = options.directory,
                                                       .file_bytes = options.file_bytes,
                                                       .files_max = options.files_max,
                                                       .faults = options.faults}));
  return absl::WrapUnique(new DiskShard(options, std::move(files), std::move(catalog)));
}

// ---- put

void DiskShard::Put(std::span<const DiskTier::NewBlock> blocks, std::span<PutResult> results) {
  LARDER_CHECK(blocks.size() == results.size());
  (void)EraseHeldBack();  // if some stay held back, there is less free space
  if (free_bytes().value() == 0 || (told_ && share_.Full())) {
    NoteNoRoom(blocks.size());
    for (PutResult& result : results) result.status = PutStatus::kNoRoom;
    return;
  }
  // Nothing is written to data files unless the catalog, which must name the new records, can be
  // written.
  if (!MakeWritable()) {
    for (PutResult& result : results) result.status = PutStatus::kFailed;
    breaker_.Failed(SteadyNow());
    return;
  }
  Writing put(blocks, results);
  AllocateAll(&put);
  FailAt(FaultPoint::kPutAllocated, &put);
  WriteAll(&put);
  FailAt(FaultPoint::kPutWritten, &put);
  SyncAll(&put);
  FailAt(FaultPoint::kPutSynced, &put);
  FreeFailed(put);
  CommitAll(&put);
  const auto failed = [](const PutResult& result) { return result.status == PutStatus::kFailed; };
  const auto done = [](const PutResult& result) { return result.status == PutStatus::kOk; };
  if (std::any_of(results.begin(), results.end(), failed)) {
    breaker_.Failed(SteadyNow());
  } else if (std::any_of(results.begin(), results.end(), done)) {
    breaker_.Succeeded();
  }
}

bool DiskShard::MakeWritable() {
  if (catalog_->writable()) return true;
  const absl::Status status = catalog_->MakeWritable();
  if (status.ok()) return true;
  ++catalog_failures_;
  if (options_.warn) options_.warn(std::string(status.message()));
  return false;
}

void DiskShard::NoteNoRoom(size_t blocks) {
  // The blocks are not counted while the data files have no free page: the catalog is then not the
  // only reason.
  if (!told_ || free_bytes_ == 0 || (share_.entries_left() > 0 && !share_.Full())) return;
  refused_catalog_ += blocks;
  const TimePoint now = SteadyNow();
  TimePoint again = warn_again_;
  if (now < again || !warn_again_.compare_exchange_strong(again, now + kBetweenWarnings)) return;
  if (!options_.warn) return;
  options_.warn(absl::StrCat(options_.directory, ": ", blocks,
                             " blocks found no space in the catalog, whose ",
                             options_.catalog_bytes_max.value(),
                             " bytes are in use; raise the disk limit (--disk-limit)"));
}

bool DiskShard::Grow(uint32_t files) {
  MutexLock growing(grow_mu_);
  if (files_->count() > files) return true;
  if (!MayGrow()) return false;
  if (absl::Status status = files_->AddFile(); !status.ok()) {
    grow_again_ = SteadyNow() + kBetweenTriesToGrow;
    ++write_failures_;
    if (options_.warn) options_.warn(std::string(status.message()));
    return false;
  }
  MutexLock lock(mu_);
  allocator_.AddSlab(static_cast<SlabId>(files));
  NoteFree();
  return true;
}

bool DiskShard::MayGrow() const {
  return files_->count() < options_.files_max && SteadyNow() >= grow_again_.load();
}

void DiskShard::AllocateAll(Writing* put) {
  const uint64_t file_pages = options_.file_bytes.value() / kPageBytes;
  for (size_t i = 0; i < put->blocks.size(); ++i)
    put->results[i].status = put->Pages(i) > file_pages ? PutStatus::kTooLarge : PutStatus::kNoRoom;
  for (;;) {
    const uint32_t files = files_->count();
    if (AllocateOpen(put) || !Grow(files)) return;
  }
}

bool DiskShard::AllocateOpen(Writing* put) {
  bool all = true;
  MutexLock lock(mu_);
  for (size_t i = 0; i < put->blocks.size(); ++i) {
    PutResult& result = put->results[i];
    if (result.status != PutStatus::kNoRoom) continue;
    const std::optional<Extent> extent = allocator_.Allocate(put->Pages(i));
    all = all && extent.has_value();
    if (extent) result = {.status = PutStatus::kOk, .extent = *extent};
  }
  NoteFree();
  return all;
}

void DiskShard::WriteAll(Writing* put) {
  const std::vector<size_t> order = put->Open();
  for (size_t from = 0; from < order.size();) {
    size_t to = from + 1;
    while (to < order.size() && put->Adjacent(order[to - 1], order[to])) ++to;
    const std::span<const size_t> run(&order[from], to - from);
    if (!WriteRun(*put, run)) {
      if (run.size() > 1) {
        WriteApart(put, run);
      } else {
        Fail(put, run.front());
      }
    }
    from = to;
  }
}

// Writes the blocks of `run`, of at least two, one by one, after one write of all of them has
// failed: a block that cannot be written then does not fail the others.  The first and the last
// block of the run are tried first: if neither can be written, the whole disk is assumed to fail,
// and the blocks between them fail without a try.
void DiskShard::WriteApart(Writing* put, std::span<const size_t> run) {
  const auto write = [&](size_t i) {
    const bool written = WriteRun(*put, {&i, 1});
    if (!written) Fail(put, i);
    return written;
  };
  const bool first = write(run.front());
  const bool last = write(run.back());
  for (const size_t i : run.subspan(1, run.size() - 2)) {
    if (first || last) {
      (void)write(i);
    } else {
      Fail(put, i);
    }
  }
}

// Writes adjacent blocks by one call of DataFiles::Write.  Returns false if it fails.
bool DiskShard::WriteRun(const Writing& put, std::span<const size_t> run) {
  uint32_t header_pages = 0;
  for (const size_t i : run) header_pages += put.HeaderPages(i);
  const PageBuffer headers(header_pages);
  std::span<std::byte> rest = headers.bytes();
  std::vector<std::span<const std::byte>> parts;
  uint64_t bytes = 0;
  for (const size_t i : run) {
    const std::span<std::byte> header = rest.first(put.HeaderPages(i) * kPageBytes);
    rest = rest.subspan(header.size());
    std::memcpy(header.data(), put.headers[i].data(), put.headers[i].size());
    const std::span<const std::byte> payload = put.blocks[i].payload;
    parts.emplace_back(header);
    parts.emplace_back(payload.data(), RoundUp(payload.size(), kPageBytes));
    bytes += put.results[i].extent.bytes().value();
  }
  data_written_ += bytes;
  const Extent& first = put.results[run.front()].extent;
  const absl::Status status =
      files_->Write(static_cast<uint32_t>(first.slab), first.offset(), parts);
  if (status.ok()) return true;
  ++write_failures_;
  if (options_.warn) options_.warn(std::string(status.message()));
  return false;
}

void DiskShard::SyncAll(Writing* put) {
  const std::vector<size_t> order = put->Open();
  for (size_t from = 0; from < order.size();) {
    const SlabId file = put->results[order[from]].extent.slab;
    size_t to = from;
    while (to < order.size() && put->results[order[to]].extent.slab == file) ++to;
    if (absl::Status status = files_->Sync(static_cast<uint32_t>(file)); !status.ok()) {
      ++sync_failures_;
      if (options_.warn) options_.warn(std::string(status.message()));
      for (; from < to; ++from) Fail(put, order[from]);
    }
    from = to;
  }
}

void DiskShard::CommitAll(Writing* put) {
  const std::vector<size_t> order = put->Open();
  if (order.empty()) return;
  std::vector<CatalogEntry> entries;
  std::vector<Room> rooms;
  for (const size_t i : order) {
    const DiskTier::NewBlock& block = put->blocks[i];
    const std::string& header = put->headers[i];
    const SegmentTable& table = block.header->table;
    const uint32_t raw_pages = table.encoded() ? PagesFor(table.Decoded().PayloadBytes()) : 0;
    entries.push_back({.key = block.header->key,
                       .place = {.extent = put->results[i].extent,
                                 .payload_bytes = ByteCount(block.payload.size()),
                                 .parent = block.header->parent,
                                 .raw_pages = raw_pages},
                       .header = std::as_bytes(std::span(header)),
                       .tokens = block.tokens});
    rooms.push_back({block.header->key, put->results[i].extent});
  }
  absl::Status status = catalog_->Commit(entries);
  if (status.ok()) status = options_.faults->StatusAt(FaultPoint::kPutCommitted);
  if (!status.ok()) {
    ++catalog_failures_;
    if (options_.warn) options_.warn(std::string(status.message()));
    for (const size_t i : order) put->results[i] = {.status = PutStatus::kFailed, .extent = {}};
    HoldBack(rooms, std::vector<bool>(rooms.size(), true));
    return;
  }
  share_.Committed(entries);
  blocks_ += order.size();
  puts_ += order.size();
  for (const size_t i : order) put_bytes_ += put->blocks[i].payload.size();
}

void DiskShard::FailAt(FaultPoint point, Writing* put) {
  if (options_.faults->StatusAt(point).ok()) return;
  ++write_failures_;
  for (const size_t i : put->Open()) Fail(put, i);
}

void DiskShard::Fail(Writing* put, size_t i) {
  put->failed.push_back({put->blocks[i].header->key, put->results[i].extent});
  put->results[i] = {.status = PutStatus::kFailed, .extent = {}};
}

void DiskShard::FreeFailed(const Writing& put) {
  if (put.failed.empty()) return;
  MutexLock lock(mu_);
  for (const Room& room : put.failed) allocator_.Free(room.extent);
  NoteFree();
}

// ---- erase

absl::Status DiskShard::Erase(std::span<const Room> asked) {
  const absl::Status held_back = EraseHeldBack();
  std::vector<Room> rooms;
  {
    MutexLock lock(mu_);
    for (const Room& room : asked) {
      if (!allocator_.IsLive(room.extent) || held_back_.contains(room)) continue;
      SetOwnerLocked(room.extent, ExtentAllocator::kNoOwner);
      rooms.push_back(room);
    }
  }
  if (rooms.empty()) return held_back;
  std::vector<bool> gone;
  absl::Status status = catalog_->Erase(rooms, &gone);
  if (status.ok()) status = options_.faults->StatusAt(FaultPoint::kEraseWritten);
  if (!status.ok()) {
    ++catalog_failures_;
    if (options_.warn) options_.warn(std::string(status.message()));
    // If gone[i] is false, the extent may belong to another record; EraseAgain finds out.
    HoldBack(rooms, gone);
    CountErased(rooms.size());
    return status;
  }
  // An extent for which gone[i] is false may belong to another record, so it is not freed.
  Free(rooms, gone);
  CountErased(static_cast<uint64_t>(std::count(gone.begin(), gone.end(), true)));
  return status;
}

void DiskShard::CountErased(uint64_t blocks) {
  share_.Erased(blocks);
  blocks_ -= blocks;
  erased_ += blocks;
}

void DiskShard::Free(std::span<const Room> rooms, const std::vector<bool>& which) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < rooms.size(); ++i) {
    if (which[i]) allocator_.Free(rooms[i].extent);
  }
  NoteFree();
}

void DiskShard::HoldBack(std::span<const Room> rooms, const std::vector<bool>& ours) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < rooms.size(); ++i) {
    bool& known = held_back_[rooms[i]];
    known = known || ours[i];
  }
}

bool DiskShard::MayEraseHeldBack(absl::Status* why) {
  MutexLock lock(mu_);
  if (held_back_.empty()) return false;
  // There may be as many held-back extents as blocks, so not every put retries their erasures.
  if (erasing_held_back_ || SteadyNow() < erase_again_) {
    *why = absl::UnavailableError(
        "erasures that failed before are not finished: a retry failed less than 1 s ago, or a "
        "retry "
        "is running");
    return false;
  }
  erasing_held_back_ = true;
  return true;
}

std::vector<DiskShard::Room> DiskShard::SomeHeldBack() const {
  MutexLock lock(mu_);
  std::vector<Room> rooms;
  for (const auto& [room, ours] : held_back_) {
    if (rooms.size() == kErasuresAtOnce) break;
    rooms.push_back(room);
  }
  return rooms;
}

absl::Status DiskShard::EraseHeldBack() {
  absl::Status status;
  if (!MayEraseHeldBack(&status)) return status;
  for (std::vector<Room> rooms = SomeHeldBack(); status.ok() && !rooms.empty();
       rooms = SomeHeldBack()) {
    status = EraseAgain(rooms);
  }
  MutexLock lock(mu_);
  erasing_held_back_ = false;
  if (!status.ok()) erase_again_ = SteadyNow() + kBetweenTriesToErase;
  return status;
}

absl::Status DiskShard::EraseAgain(std::span<const Room> rooms) {
  std::vector<bool> gone;
  absl::Status status = catalog_->Erase(rooms, &gone);
  uint64_t others = 0;
  MutexLock lock(mu_);
  for (size_t i = 0; i < rooms.size(); ++i) {
    bool& ours = held_back_.at(rooms[i]);
    // `ours` stays true across retries: an erasure that reports a failure may have removed the key
    // all the same, and the next retry then does not find the key.
    ours = ours || gone[i];
    if (!status.ok()) continue;
    if (ours) {
      allocator_.Free(rooms[i].extent);
    } else {
      ++others;
    }
    held_back_.erase(rooms[i]);
  }
  blocks_ += others;
  erased_ -= others;
  NoteFree();
  return status;
}

std::vector<uint32_t> DiskShard::FindVictims(ByteCount payload_bytes, DiskTier::WorthOf worth,
                                             double* cost) {
  // Assumes that the record's header takes one page.  For a block of many segments the space may be
  // a few pages too small.
  const uint32_t pages = PagesFor(payload_bytes) + 1;
  MutexLock lock(mu_);
  if (!told_ || pages > options_.file_bytes.value() / kPageBytes ||
      allocator_.largest_free_pages() >= pages || MayGrow()) {
    return {};
  }
  const auto may_go = [&](uint32_t owner) {
    return owner == DiskTier::kUnplaced ? std::nullopt : worth(owner);
  };
  return allocator_.FindWindow(pages, &window_cursor_, may_go, cost);
}

// ---- read

absl::Status DiskShard::Describe(std::span<const BlockKey> keys,
                                 std::span<std::optional<DiskTier::Description>> out) {
  std::vector<std::optional<BlockCatalog::Description>> found(keys.size());
  const absl::Status status = catalog_->Describe(keys, found);
  if (!status.ok()) {
    ++catalog_failures_;
    if (options_.warn) options_.warn(std::string(status.message()));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    out[i].reset();
    if (!found[i]) continue;
    absl::StatusOr<DecodedHeader> decoded =
        DecodeRecordHeaderOf(keys[i], std::as_bytes(std::span(found[i]->header)));
    if (!decoded.ok()) {
      ++damaged_;
      continue;
    }
    out[i] = DiskTier::Description{.header = std::move(decoded->header),
                                   .tokens = std::move(found[i]->tokens)};
  }
  return status;
}

absl::Status DiskShard::ReadRecord(const Extent& extent, uint32_t first_page,
                                   std::span<const std::span<std::byte>> to) {
  return files_->Read(static_cast<uint32_t>(extent.slab), extent.offset() + first_page * kPageBytes,
                      to);
}

GetStatus DiskShard::Get(const DiskTier::Read& read, const Extent& extent) {
  ++gets_;
  const std::string header = EncodeRecordHeader(*read.header);
  const uint32_t header_pages = PagesFor(ByteCount(header.size()));
  const ByteCount payload = read.header->table.PayloadBytes();
  const bool inside = static_cast<uint32_t>(extent.slab) < files_->count() &&
                      extent.offset() + extent.bytes().value() <= options_.file_bytes.value();
  if (!inside || read.header->key != read.block.key) return GetStatus::kMissing;
  if (extent.pages != header_pages + PagesFor(payload)) {
    ++damaged_;
    return GetStatus::kDamaged;
  }
  const std::span<std::byte> to = read.to.first(DiskTier::PagesOf(read.range).value());
  const bool whole = IsWhole(read.range, read.header->table);
  const PageBuffer head(whole ? header_pages : 0);
  const auto first_page = static_cast<uint32_t>(read.range.begin / kPageBytes);
  const absl::Status status = whole ? ReadRecord(extent, 0, {{head.bytes(), to}})
                                    : ReadRecord(extent, header_pages + first_page, {{to}});
  if (!status.ok()) {
    ++read_failures_;
    if (options_.warn) options_.warn(std::string(status.message()));
    return GetStatus::kFailed;
  }
  if ((whole && !IsHeader(head.bytes(), header)) || !Intact(to, read.header->table, read.range)) {
    ++damaged_;
    return GetStatus::kDamaged;
  }
  got_bytes_ += read.range.end - read.range.begin;
  return GetStatus::kOk;
}

// ---- free space

void DiskShard::NoteFree() { free_bytes_ = allocator_.free_bytes().value(); }

// While no further data file may be created (MayGrow), only the free space of the existing files
// counts.
ByteCount DiskShard::free_bytes() const {
  if (!told_) return ByteCount(0);
  const uint64_t missing =
      MayGrow() ? (options_.files_max - files_->count()) * options_.file_bytes.value() : 0;
  const uint64_t free = free_bytes_ + missing;
  // The catalog has space for entries_left() more blocks, which are assumed to be as large as the
  // stored blocks are on average.
  const uint64_t blocks = blocks_;
  if (blocks == 0) return ByteCount(free);
  const uint64_t used = files_->count() * options_.file_bytes.value() - free_bytes_;
  return ByteCount(std::min(free, share_.entries_left() * (used / blocks)));
}

absl::Status DiskShard::PutFacts(std::span<const DiskTier::Fact> facts, Facts what) {
  if (what == Facts::kNew && share_.Full())
    return absl::ResourceExhaustedError(
        "the catalog of a disk shard is full; raise the disk limit (--disk-limit)");
  return catalog_->PutFacts(facts);
}

void DiskShard::AddTo(DiskTier::Stats* stats) const {
  const ByteCount file_bytes(files_->count() * options_.file_bytes.value());
  {
    MutexLock lock(mu_);
    stats->used += allocator_.total_bytes() - allocator_.free_bytes();
  }
  stats->room += ByteCount(options_.files_max * options_.file_bytes.value());
  stats->allocated += file_bytes + catalog_->disk_bytes();
  stats->blocks += blocks_;
  stats->unplaced += unplaced_;
  stats->puts += puts_;
  stats->gets += gets_;
  stats->erased += erased_;
  stats->put_bytes += ByteCount(put_bytes_);
  stats->got_bytes += ByteCount(got_bytes_);
  stats->written_bytes += ByteCount(data_written_) + catalog_->written_bytes();
  stats->damaged += damaged_;
  stats->write_failures += write_failures_;
  stats->read_failures += read_failures_;
  stats->sync_failures += sync_failures_;
  stats->catalog_failures += catalog_failures_ + catalog_->unread_names();
  stats->refused_catalog += refused_catalog_;
}

}  // namespace larder
