#include "storage/disk/file_disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/check.h"
#include "storage/disk/directory.h"
#include "storage/index_entry.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kVersion = 3;  // 1: records do not say their content; 2: none is encoded
constexpr uint32_t kShardsMax = 8;
constexpr ByteCount kFileBytesMin = MiB(16);
constexpr ByteCount kFileBytesMax = MiB(256);
constexpr uint64_t kFilesMax = 65'528;  // of all shards: {file, shard} is 16 bits of a location
constexpr uint32_t kFilesPerShardMin = 2;
constexpr ByteCount kCatalogBytesMin = MiB(32);
constexpr const char* kFormatFile = "FORMAT";

ByteCount CatalogBytes(ByteCount limit) {
  return std::max(kCatalogBytesMin, ByteCount(limit.value() / 16));
}

absl::Status Failed(const std::string& what, const std::string& path, int error) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(error)));
}

uint64_t TreeBytes(const std::string& path) {
  uint64_t bytes = 0;
  (void)ForEachIn<fs::recursive_directory_iterator>(path, [&](const fs::directory_entry& entry) {
    std::error_code error;
    const uint64_t size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) bytes += size;
  });
  return bytes;
}

absl::Status WriteDurably(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  const int fd = open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return Failed("cannot write", next, errno);
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (!written) return Failed("cannot write", next, error);
  return rename(next.c_str(), path.c_str()) == 0 ? absl::OkStatus()
                                                 : Failed("cannot rename", next, errno);
}

// Some shard may take it still.
bool Homeless(const DiskTier::PutResult& result) {
  return result.status == DiskTier::PutStatus::kNoRoom ||
         result.status == DiskTier::PutStatus::kFailed;
}

}  // namespace

// ---- opening

FileDiskTier::FileDiskTier(const Options& options)
    : options_(options),
      faults_(options.faults != nullptr ? *options.faults : no_faults_),
      memory_(options.memory) {}

FileDiskTier::~FileDiskTier() {
  {
    MutexLock lock(shards_mu_);
    shards_.clear();
  }
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::StatusOr<std::unique_ptr<FileDiskTier>> FileDiskTier::Open(const Options& options) {
  if (options.limit < kLimitMin) {
    return absl::InvalidArgumentError(absl::StrCat("a disk limit of ", options.limit.value(),
                                                   " bytes is too small; at least ",
                                                   kLimitMin.value()));
  }
  auto tier = absl::WrapUnique(new FileDiskTier(options));
  if (mkdir(options.directory.c_str(), 0700) != 0 && errno != EEXIST)
    return Failed("cannot make", options.directory, errno);
  if (absl::Status status = tier->LockDirectory(); !status.ok()) return status;
  if (absl::Status status = tier->FindGeometry(); !status.ok()) return status;
  tier->putting_ = std::vector<std::atomic<uint32_t>>(tier->geometry_.shards);
  {
    MutexLock lock(tier->shards_mu_);
    tier->shards_.resize(tier->geometry_.shards);
  }
  tier->set_aside_bytes_ = TreeBytes(tier->SetAsidePath());
  if (absl::Status status = tier->OpenShards(); !status.ok()) return status;
  return tier;
}

// At once: most of the time is waiting for the disk, some tens of milliseconds a shard.
absl::Status FileDiskTier::OpenShards() {
  std::vector<absl::Status> statuses(geometry_.shards);
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < geometry_.shards; ++number)
    threads.emplace_back([this, number, &statuses] { statuses[number] = OpenShard(number); });
  for (std::thread& thread : threads) thread.join();
  // One that the disk does not give costs its own blocks; none at all is for the operator.
  for (const absl::Status& status : statuses) {
    if (absl::IsFailedPrecondition(status)) return status;
    failed_ += status.ok() ? 0 : 1;
    if (!status.ok()) Warn(absl::StrCat("a shard stays closed for now: ", status.message()));
  }
  return failed_ < geometry_.shards ? absl::OkStatus() : statuses.front();
}

absl::Status FileDiskTier::LockDirectory() {
  const std::string path = options_.directory + "/LOCK";
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) return Failed("cannot open", path, errno);
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(options_.directory,
                   " is used by another process; give each daemon a directory "
                   "of its own"));
}

FileDiskTier::Geometry FileDiskTier::GeometryFor(ByteCount limit) {
  Geometry out;
  out.file_bytes = ByteCount(
      std::clamp(std::bit_floor(limit.value() / 32), kFileBytesMin.value(), kFileBytesMax.value()));
  const uint64_t files = (limit - CatalogBytes(limit)).value() / out.file_bytes.value();
  out.shards =
      static_cast<uint32_t>(std::clamp<uint64_t>(files / kFilesPerShardMin, 1, kShardsMax));
  return out;
}

// Any one shard's FORMAT suffices: a damaged one costs nothing.  All are looked at: a newer daemon
// that died while it made the directory its own has left some as they were.
absl::Status FileDiskTier::FindGeometry() {
  std::optional<Geometry> found;
  for (uint32_t number = 0; number < kShardsMax; ++number) {
    std::ifstream file(ShardPath(number) + "/" + kFormatFile);
    std::string words[4];
    uint32_t version = 0, shards = 0;
    uint64_t file_bytes = 0;
    if (!(file >> words[0] >> version)) continue;
    if (words[0] == "larder-disk-tier" && version > kVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat(options_.directory, " was written by a newer larderd (disk format ", version,
                       "; this one knows ", kVersion, "); use that one, or another directory"));
    }
    if (found || !(file >> words[1] >> shards >> words[2] >> file_bytes) || words[1] != "shards" ||
        words[2] != "file_bytes" || shards == 0 || shards > kShardsMax ||
        file_bytes < kFileBytesMin.value() || file_bytes > kFileBytesMax.value() ||
        !std::has_single_bit(file_bytes)) {
      continue;
    }
    found = {.shards = shards, .file_bytes = ByteCount(file_bytes)};
  }
  geometry_ = found.value_or(GeometryFor(options_.limit));
  return absl::OkStatus();
}

std::string FileDiskTier::SetAsidePath() const { return options_.directory + "/set-aside"; }

std::string FileDiskTier::ShardPath(uint32_t number) const {
  return absl::StrCat(options_.directory, "/shard-", absl::StrFormat("%02d", number));
}

DiskShard::Options FileDiskTier::ShardOptions(uint32_t number) const {
  // Half of the catalogs' part is for what a compaction writes before it deletes, and for the one
  // that is set aside.
  const ByteCount catalogs = CatalogBytes(options_.limit);
  // As many as locations have numbers for; a lower limit than that of the directory's making may
  // leave some shards none.
  const uint64_t files = std::min<uint64_t>(
      kFilesMax, (options_.limit - catalogs).value() / geometry_.file_bytes.value());
  const uint64_t mine = files / geometry_.shards + (number < files % geometry_.shards ? 1 : 0);
  const bool faulty = options_.faulty_shard.value_or(number) == number;
  return {.directory = ShardPath(number),
          .file_bytes = geometry_.file_bytes,
          .files_max = static_cast<uint32_t>(mine),
          .catalog_bytes_max = ByteCount(catalogs.value() / 2 / geometry_.shards),
          .memory = const_cast<CatalogMemory*>(&memory_),
          .faults = const_cast<FaultPoints*>(faulty ? &faults_ : &no_faults_),
          .warn = options_.warn};
}

absl::Status FileDiskTier::OpenShard(uint32_t number) {
  const std::string path = ShardPath(number);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Failed("cannot make", path, errno);
  const std::string format =
      absl::StrCat("larder-disk-tier ", kVersion, "\nshards ", geometry_.shards, "\nfile_bytes ",
                   geometry_.file_bytes.value(), "\n");
  std::ifstream file(path + "/" + kFormatFile);
  const std::string there{std::istreambuf_iterator<char>(file), {}};
  if (there != format) {
    if (absl::Status status = WriteDurably(path + "/" + kFormatFile, format); !status.ok())
      return status;
  }
  auto shard = DiskShard::Open(ShardOptions(number));
  if (absl::IsDataLoss(shard.status())) {
    if (absl::Status status = SetAside(number, shard.status()); !status.ok()) return status;
    shard = DiskShard::Open(ShardOptions(number));
  }
  if (!shard.ok()) return shard.status();
  MutexLock lock(shards_mu_);
  shards_[number] = *std::move(shard);
  return absl::OkStatus();
}

FileDiskTier::ShardRef FileDiskTier::At(uint32_t number) const {
  MutexLock lock(shards_mu_);
  return number < shards_.size() ? shards_[number] : nullptr;
}

std::vector<FileDiskTier::ShardRef> FileDiskTier::All() const {
  MutexLock lock(shards_mu_);
  std::vector<ShardRef> all = shards_;
  std::erase(all, nullptr);
  return all;
}

void FileDiskTier::CloseShard(uint32_t number) {
  ShardRef last;
  {
    MutexLock lock(shards_mu_);
    last.swap(shards_[number]);
  }
  // Nobody knows a block of it, so these are short: a look at its counters.
  while (last.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Its catalog is kept for who wants to know why; its data files are used again.
absl::Status FileDiskTier::SetAside(uint32_t number, const absl::Status& why) {
  MutexLock lock(set_aside_mu_);
  Warn(absl::StrCat(ShardPath(number),
                    " is damaged and starts empty: ", absl::string_view(why.message())));
  const std::string place = SetAsidePath();
  std::error_code error;
  fs::remove_all(place, error);
  fs::create_directory(place, error);
  fs::rename(ShardPath(number) + "/catalog", place + "/catalog", error);
  if (error) fs::remove_all(ShardPath(number) + "/catalog", error);
  if (error) return Failed("cannot remove", ShardPath(number) + "/catalog", error.value());
  (void)faults_.At(FaultPoint::kShardSetAside);
  set_aside_bytes_ = TreeBytes(place);
  if (set_aside_bytes_ > CatalogBytes(options_.limit).value() / 4) {
    fs::remove_all(place, error);
    set_aside_bytes_ = 0;
  }
  ++set_aside_;
  return absl::OkStatus();
}

void FileDiskTier::Warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

// ---- what there is

absl::Status FileDiskTier::Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                   absl::FunctionRef<bool()> stop) {
  absl::Status result;
  uint32_t failed = 0;
  for (uint32_t number = 0; number < geometry_.shards; ++number) {
    if (const ShardRef shard = At(number); shard && shard->recovered()) continue;
    const absl::Status status = RecoverShard(number, owner_of, stop);
    if (absl::IsCancelled(status)) return status;
    if (status.ok()) continue;
    ++failed;
    result = absl::UnavailableError(
        absl::StrCat(ShardPath(number), " stays closed for now: ", status.message()));
    Warn(std::string(result.message()));
  }
  failed_ = failed;
  ForEachFact([](const std::string&, const std::string&) {});  // finds the newest sequence
  return result;
}

absl::Status FileDiskTier::RecoverShard(uint32_t number,
                                        absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                        absl::FunctionRef<bool()> stop) {
  if (!At(number)) {
    if (absl::Status status = OpenShard(number); !status.ok()) return status;
  }
  ShardRef shard = At(number);
  absl::StatusOr<std::vector<DiskShard::Entry>> entries = shard->Recover();
  if (absl::IsDataLoss(entries.status())) {
    shard.reset();
    CloseShard(number);
    if (absl::Status status = SetAside(number, entries.status()); !status.ok()) return status;
    if (absl::Status status = OpenShard(number); !status.ok()) return status;
    shard = At(number);
    entries = shard->Recover();
  }
  if (!entries.ok()) return entries.status();
  std::vector<DiskShard::Room> unwanted;
  for (const DiskShard::Entry& found : *entries) {
    if (stop()) return absl::CancelledError("stopped while it looked for what is on the disk");
    const Entry entry{.key = found.key,
                      .location = LocationOf(number, found.place.extent),
                      .parent = found.place.parent,
                      .payload_bytes = found.place.payload_bytes,
                      .raw_pages = found.place.RawPages(),
                      .disk_bytes = found.place.extent.bytes()};
    const uint32_t owner = owner_of(entry);
    if (owner != 0) {
      shard->SetOwner(found.place.extent, owner);
    } else {
      unwanted.push_back({found.key, found.place.extent});
    }
  }
  (void)shard->Erase(unwanted);  // else the next start finds them again
  shard->SetTold();
  return absl::OkStatus();
}

// ---- places

DiskLocation FileDiskTier::LocationOf(uint32_t shard, const Extent& extent) const {
  Extent global = extent;
  global.slab = static_cast<SlabId>(static_cast<uint32_t>(extent.slab) * geometry_.shards + shard);
  PackedExtent packed;
  packed.Set(global);
  return DiskLocation{std::bit_cast<uint64_t>(packed)};
}

Extent FileDiskTier::ExtentOf(DiskLocation location, uint32_t* shard) const {
  Extent extent = std::bit_cast<PackedExtent>(location).Get();
  const auto file = static_cast<uint32_t>(extent.slab);
  *shard = file % geometry_.shards;
  extent.slab = static_cast<SlabId>(file / geometry_.shards);
  return extent;
}

template <class Visit>
void FileDiskTier::ByShard(std::span<const DiskAddress> blocks, Visit visit) const {
  std::vector<std::vector<size_t>> places(geometry_.shards);
  for (size_t i = 0; i < blocks.size(); ++i) {
    uint32_t shard = 0;
    if (blocks[i].location == DiskLocation::kNone) continue;
    (void)ExtentOf(blocks[i].location, &shard);
    places[shard].push_back(i);
  }
  for (uint32_t number = 0; number < geometry_.shards; ++number) {
    if (places[number].empty()) continue;
    if (const ShardRef shard = At(number)) visit(*shard, places[number]);
  }
}

// ---- writing

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
  // What no shard takes that works has no room; where none works, or not yet, it has failed.  A
  // full one does not say which.
  const bool some_work = !order.empty();
  std::erase_if(order, [this](uint32_t number) {
    const ShardRef shard = At(number);
    return !shard || shard->free_bytes().value() == 0;
  });
  const PutStatus none = some_work && order.empty() ? PutStatus::kNoRoom : PutStatus::kFailed;
  for (PutResult& result : results) result = {.status = none};
  for (const uint32_t number : order) {
    if (std::none_of(results.begin(), results.end(), Homeless)) return;
    PutTo(number, blocks, results);
  }
}

// Those that no shard has taken yet.
void FileDiskTier::PutTo(uint32_t number, std::span<const NewBlock> blocks,
                         std::span<PutResult> results) {
  const ShardRef shard = At(number);
  if (!shard) return;
  std::vector<NewBlock> now;
  std::vector<size_t> places;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!Homeless(results[i])) continue;
    now.push_back(blocks[i]);
    places.push_back(i);
  }
  std::vector<DiskShard::PutResult> put(now.size());
  ++putting_[number];
  shard->Put(now, put);
  --putting_[number];
  for (size_t i = 0; i < now.size(); ++i) {
    // No room in one that works says more than the failure of another.
    if (results[places[i]].status == PutStatus::kFailed || put[i].status != PutStatus::kFailed)
      results[places[i]].status = put[i].status;
    if (put[i].status == PutStatus::kOk)
      results[places[i]].location = LocationOf(number, put[i].extent);
  }
}

// A shard that does not erase costs its own room: the others must not wait for it.
absl::Status FileDiskTier::EraseHeldBack() {
  absl::Status result = absl::UnavailableError("no shard has told what it holds");
  for (const ShardRef& shard : All()) {
    if (!shard->told()) continue;
    absl::Status status = shard->Erase({});
    if (!result.ok()) result = std::move(status);
  }
  return result;
}

absl::Status FileDiskTier::Erase(std::span<const DiskAddress> blocks) {
  if (blocks.empty()) return EraseHeldBack();
  absl::Status result;
  ByShard(blocks, [&](DiskShard& shard, std::span<const size_t> places) {
    result.Update(shard.Erase(RoomsOf(blocks, places)));
  });
  return result;
}

std::vector<DiskShard::Room> FileDiskTier::RoomsOf(std::span<const DiskAddress> blocks,
                                                   std::span<const size_t> which) const {
  std::vector<DiskShard::Room> rooms;
  for (const size_t i : which) {
    uint32_t shard = 0;
    rooms.push_back({blocks[i].key, ExtentOf(blocks[i].location, &shard)});
  }
  return rooms;
}

absl::Status FileDiskTier::Forget(std::span<const DiskAddress> blocks) {
  absl::Status result;
  ByShard(blocks, [&](DiskShard& shard, std::span<const size_t> places) {
    result.Update(shard.catalog().Forget(RoomsOf(blocks, places)));
  });
  return result;
}

absl::Status FileDiskTier::SyncErasures() {
  absl::Status result;
  for (const ShardRef& shard : All()) {
    result.Update(shard->Erase({}));  // what it could not erase before
    result.Update(shard->catalog().Sync());
  }
  return result;
}

// ---- reading

absl::Status FileDiskTier::Describe(std::span<const DiskAddress> blocks,
                                    std::span<std::optional<Description>> out) {
  LARDER_CHECK(blocks.size() == out.size());
  for (std::optional<Description>& one : out) one.reset();
  absl::Status result;
  ByShard(blocks, [&](DiskShard& shard, std::span<const size_t> places) {
    std::vector<BlockKey> keys;
    for (const size_t i : places) keys.push_back(blocks[i].key);
    std::vector<std::optional<Description>> found(keys.size());
    result.Update(shard.Describe(keys, found));
    for (size_t i = 0; i < places.size(); ++i) out[places[i]] = std::move(found[i]);
  });
  return result;
}

DiskTier::GetStatus FileDiskTier::Get(const Read& read) {
  if (read.block.location == DiskLocation::kNone) return GetStatus::kMissing;
  uint32_t number = 0;
  const Extent extent = ExtentOf(read.block.location, &number);
  const ShardRef shard = At(number);
  return shard ? shard->Get(read, extent) : GetStatus::kMissing;
}

// ---- room

void FileDiskTier::SetOwner(DiskLocation location, uint32_t owner) {
  uint32_t number = 0;
  const Extent extent = ExtentOf(location, &number);
  if (const ShardRef shard = At(number)) shard->SetOwner(extent, owner);
}

std::vector<uint32_t> FileDiskTier::FindVictims(ByteCount payload_bytes,
                                                absl::FunctionRef<bool(uint32_t)> evictable) {
  for (const uint32_t number : ShardsByRoom()) {
    const ShardRef shard = At(number);
    if (!shard) continue;
    std::vector<uint32_t> found = shard->FindVictims(payload_bytes, evictable);
    if (!found.empty()) return found;
  }
  return {};
}

ByteCount FileDiskTier::block_bytes_max() const {
  return geometry_.file_bytes - ByteCount(kRecordHeaderBytesMax);
}

// Where no shard works, making room were in vain.
ByteCount FileDiskTier::free_bytes() const {
  const std::vector<uint32_t> order = ShardsByRoom();
  const ShardRef first = order.empty() ? nullptr : At(order.front());
  if (!first) return ByteCount(0);
  return first->healthy() ? first->free_bytes() : options_.limit;
}

// As much lies free in each shard, where it comes back a batch at a time from all of them.
ByteCount FileDiskTier::batch_bytes() const {
  constexpr uint64_t kShare = 8;
  return ByteCount(options_.limit.value() / (kShare * geometry_.shards));
}

// ---- facts

// Every shard has every fact, the newest wins: so no one shard's damage loses any.  What is
// forgotten is there too, without a value, until all shards have heard of it: one that was away
// would bring it back.
absl::Status FileDiskTier::PutFacts(std::span<const Fact> facts) {
  MutexLock lock(facts_mu_);
  const uint64_t sequence = ++fact_sequence_;
  std::string prefix(sizeof sequence, '\0');
  std::memcpy(prefix.data(), &sequence, sizeof sequence);
  std::vector<Fact> stored, forgotten;
  for (const Fact& fact : facts) {
    stored.push_back({fact.key, prefix + fact.value});
    if (fact.value.empty()) forgotten.push_back(fact);
  }
  const auto what =
      forgotten.size() == facts.size() ? DiskShard::Facts::kForgotten : DiskShard::Facts::kNew;
  absl::Status result = absl::UnavailableError("no shard");
  uint32_t took = 0;
  for (const ShardRef& shard : All()) {
    absl::Status status = shard->PutFacts(stored, what);
    took += status.ok() ? 1 : 0;
    if (!result.ok()) result = std::move(status);
  }
  if (forgotten.empty() || took < geometry_.shards) return result;
  for (const ShardRef& shard : All())
    (void)shard->PutFacts(forgotten, DiskShard::Facts::kForgotten);
  return result;
}

void FileDiskTier::ForEachFact(
    absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) {
  std::map<std::string, StoredFact> newest;
  MutexLock lock(facts_mu_);
  for (const ShardRef& shard : All()) {
    const absl::Status status = shard->catalog().ForEachFact(
        [&](const std::string& key, const std::string& stored) LARDER_NO_THREAD_SAFETY_ANALYSIS {
          StoredFact fact;
          if (stored.size() < sizeof fact.sequence) return;
          std::memcpy(&fact.sequence, stored.data(), sizeof fact.sequence);
          fact_sequence_ = std::max(fact_sequence_, fact.sequence);
          fact.value = stored.substr(sizeof fact.sequence);
          StoredFact& known = newest[key];
          if (fact.sequence > known.sequence) known = std::move(fact);
        });
    if (!status.ok()) Warn(std::string(status.message()));
  }
  for (const auto& [key, fact] : newest) {
    if (!fact.value.empty()) visit(key, fact.value);
  }
}

DiskTier::Stats FileDiskTier::stats() const {
  Stats stats;
  stats.limit = options_.limit;
  for (const ShardRef& shard : All()) shard->AddTo(&stats);
  stats.allocated += ByteCount(set_aside_bytes_);
  stats.shards = geometry_.shards;
  stats.shards_set_aside = set_aside_;
  stats.shards_failed = failed_;
  for (const ShardRef& shard : All())
    stats.shards_failed += shard->told() && !shard->writable() ? 1 : 0;
  return stats;
}

}  // namespace larder
