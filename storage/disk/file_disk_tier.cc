#include "storage/disk/file_disk_tier.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/index/index_entry.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// The most data files in all shards together, since a DiskLocation has 16 bits for file and shard.
constexpr uint64_t kFilesMax = 65'528;
constexpr uint32_t kFilesPerShardMin = 2;
constexpr ByteCount kCatalogBytesMin = MiB(32);

ByteCount CatalogBytes(ByteCount limit) {
  return std::max(kCatalogBytesMin, ByteCount(limit.value() / 16));
}

}  // namespace

// ---- opening

FileDiskTier::FileDiskTier(const Options& options)
    : options_(options),
      faults_(options.faults != nullptr ? *options.faults : no_faults_),
      memory_(options.memory) {}

FileDiskTier::~FileDiskTier() {
  MutexLock lock(shards_mu_);
  shards_.clear();  // before directory_ releases the lock
}

absl::StatusOr<std::unique_ptr<FileDiskTier>> FileDiskTier::Open(const Options& options) {
  if (options.limit < kLimitMin) {
    return absl::InvalidArgumentError(absl::StrCat("a disk limit of ", options.limit.value(),
                                                   " bytes is too small; it must be at least ",
                                                   kLimitMin.value()));
  }
  auto tier = absl::WrapUnique(new FileDiskTier(options));
  LARDER_ASSIGN_OR_RETURN(tier->directory_, TierDirectory::Open(options.directory));
  LARDER_ASSIGN_OR_RETURN(const auto geometry, tier->directory_->ReadFormats());
  tier->geometry_ = geometry.value_or(GeometryFor(options.limit));
  tier->putting_ = std::vector<std::atomic<uint32_t>>(tier->geometry_.shards);
  {
    MutexLock lock(tier->shards_mu_);
    tier->shards_.resize(tier->geometry_.shards);
  }
  tier->set_aside_bytes_ = tier->directory_->SetAsideBytes();
  tier->facts_.emplace(tier->geometry_.shards, tier->ShardOptions(0).catalog_bytes_max,
                       options.warn);
  LARDER_RETURN_IF_ERROR(tier->OpenShards());
  tier->facts_->Load(tier->All());
  return tier;
}

// Opens all shards at the same time, because opening one mostly waits for the disk.
absl::Status FileDiskTier::OpenShards() {
  std::vector<absl::Status> statuses(geometry_.shards);
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < geometry_.shards; ++number)
    threads.emplace_back([this, number, &statuses] { statuses[number] = OpenShard(number); });
  for (std::thread& thread : threads) thread.join();
  ChooseId();
  for (uint32_t number = 0; number < geometry_.shards; ++number) {
    if (!statuses[number].ok()) continue;
    statuses[number] = IdentifyShard(number);
    if (!statuses[number].ok() && At(number)) CloseShard(number);
  }
  // If a shard cannot be opened, only its own blocks are missing.  Open fails, so that the operator
  // decides, if no shard can be opened or one has an error that the operator must mend.
  for (const absl::Status& status : statuses) {
    if (absl::IsFailedPrecondition(status)) return status;
    failed_ += status.ok() ? 0 : 1;
    if (!status.ok())
      Warn(absl::StrCat(
          "a shard of the disk cannot be opened; its blocks are missing until a retry succeeds: ",
          status.message()));
  }
  return failed_ < geometry_.shards ? absl::OkStatus() : statuses.front();
}

void FileDiskTier::ChooseId() {
  std::vector<std::string> catalogs;
  for (const ShardRef& shard : All()) {
    if (const auto identity = shard->catalog().Identity(); identity.ok())
      catalogs.push_back(*identity);
  }
  directory_->ChooseId(catalogs);
}

FileDiskTier::Geometry FileDiskTier::GeometryFor(ByteCount limit) {
  Geometry out;
  out.file_bytes =
      ByteCount(std::clamp(std::bit_floor(limit.value() / 32), TierDirectory::kFileBytesMin.value(),
                           TierDirectory::kFileBytesMax.value()));
  const uint64_t files = (limit - CatalogBytes(limit)).value() / out.file_bytes.value();
  out.shards = static_cast<uint32_t>(
      std::clamp<uint64_t>(files / kFilesPerShardMin, 1, TierDirectory::kShardsMax));
  return out;
}

DiskShard::Options FileDiskTier::ShardOptions(uint32_t number) const {
  // Half of what the limit reserves for catalogs is for what a compaction writes before it deletes
  // its input, and for the catalog that is set aside.
  const ByteCount catalogs = CatalogBytes(options_.limit);
  // How many data files all shards may have.  If the limit is lower than when the directory was
  // created, some shards may get none.
  const uint64_t files = std::min<uint64_t>(
      kFilesMax, (options_.limit - catalogs).value() / geometry_.file_bytes.value());
  const uint64_t mine = files / geometry_.shards + (number < files % geometry_.shards ? 1 : 0);
  const bool faulty = options_.faulty_shard.value_or(number) == number;
  return {.directory = directory_->ShardPath(number),
          .file_bytes = geometry_.file_bytes,
          .files_max = static_cast<uint32_t>(mine),
          .catalog_bytes_max = ByteCount(catalogs.value() / 2 / geometry_.shards),
          .memory = const_cast<CatalogMemory*>(&memory_),
          .faults = const_cast<FaultPoints*>(faulty ? &faults_ : &no_faults_),
          .warn = options_.warn};
}

absl::Status FileDiskTier::OpenShard(uint32_t number) {
  LARDER_RETURN_IF_ERROR(directory_->MakeShard(number));
  auto shard = DiskShard::Open(ShardOptions(number));
  if (absl::IsDataLoss(shard.status())) {
    LARDER_RETURN_IF_ERROR(SetAside(number, shard.status()));
    LARDER_RETURN_IF_ERROR(directory_->MakeShard(number));
    shard = DiskShard::Open(ShardOptions(number));
  }
  LARDER_RETURN_IF_ERROR(shard.status());
  MutexLock lock(shards_mu_);
  shards_[number] = *std::move(shard);
  return absl::OkStatus();
}

// A crash between the writes of the identity and of FORMAT does no harm: the next start writes what
// is missing.
absl::Status FileDiskTier::IdentifyShard(uint32_t number) {
  const std::string mine = directory_->IdentityOf(number);
  absl::StatusOr<std::string> identity = At(number)->catalog().Identity();
  absl::Status why = identity.status();
  if (identity.ok() && !identity->empty() && *identity != mine) {
    why = absl::DataLossError(
        absl::StrCat("its catalog belongs to ", *identity, ", not to ", mine,
                     "; check whether a backup was restored to the wrong directory"));
  }
  if (absl::IsDataLoss(why)) {
    CloseShard(number);
    LARDER_RETURN_IF_ERROR(SetAside(number, why));
    LARDER_RETURN_IF_ERROR(OpenShard(number));
    identity = "";
  }
  LARDER_RETURN_IF_ERROR(identity.status());
  if (identity->empty()) {
    LARDER_RETURN_IF_ERROR(At(number)->catalog().SetIdentity(mine));
  }
  return directory_->WriteFormat(number, geometry_);
}

absl::Status FileDiskTier::OpenAndIdentify(uint32_t number) {
  absl::Status status = OpenShard(number);
  if (status.ok()) status = IdentifyShard(number);
  opened_late_ = opened_late_ || status.ok();
  // Nothing may be put into a shard whose identity is unknown.
  if (!status.ok() && At(number)) CloseShard(number);
  return status;
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
  // No caller of the tier knows a block of this shard, so other threads use the shard only now and
  // then, for example to read its counters or to write facts.
  while (last.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Keeps the catalog, if possible and not too large, so that the operator can find out why it was
// damaged; the shard's data files are used again.
absl::Status FileDiskTier::SetAside(uint32_t number, const absl::Status& why) {
  MutexLock lock(set_aside_mu_);
  Warn(absl::StrCat(directory_->ShardPath(number),
                    " is damaged and starts empty: ", absl::string_view(why.message())));
  LARDER_RETURN_IF_ERROR(directory_->SetAside(number));
  (void)faults_.At(FaultPoint::kShardSetAside);
  set_aside_bytes_ = directory_->SetAsideBytes();
  if (set_aside_bytes_ > CatalogBytes(options_.limit).value() / 4) {
    directory_->RemoveSetAside();
    set_aside_bytes_ = 0;
  }
  ++set_aside_;
  return absl::OkStatus();
}

void FileDiskTier::Warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

// ---- recovery

absl::Status FileDiskTier::Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                   absl::FunctionRef<bool()> stop) {
  absl::Status result;
  uint32_t failed = 0;
  for (uint32_t number = 0; number < geometry_.shards; ++number) {
    const ShardRef known = At(number);
    const bool told = known && known->recovered();
    const absl::Status status =
        told ? TellUnplaced(number, owner_of, stop) : RecoverShard(number, owner_of, stop);
    if (absl::IsCancelled(status)) return status;
    if (status.ok()) continue;
    ++failed;
    result = absl::UnavailableError(
        absl::StrCat(directory_->ShardPath(number),
                     " cannot report all its blocks, which are missing until a retry succeeds: ",
                     status.message()));
    Warn(std::string(result.message()));
  }
  failed_ = failed;
  recovered_once_ = true;
  NoteUnplaced();
  if (std::exchange(opened_late_, false)) facts_->Load(All());
  return result;
}

absl::Status FileDiskTier::RecoverShard(uint32_t number,
                                        absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                        absl::FunctionRef<bool()> stop) {
  if (!At(number)) {
    LARDER_RETURN_IF_ERROR(OpenAndIdentify(number));
  }
  ShardRef shard = At(number);
  absl::StatusOr<std::vector<DiskShard::Entry>> entries = shard->Recover();
  if (absl::IsDataLoss(entries.status())) {
    shard.reset();
    CloseShard(number);
    LARDER_RETURN_IF_ERROR(SetAside(number, entries.status()));
    LARDER_RETURN_IF_ERROR(OpenAndIdentify(number));
    shard = At(number);
    entries = shard->Recover();
  }
  LARDER_RETURN_IF_ERROR(entries.status());
  std::vector<DiskShard::Room> unwanted;
  for (const DiskShard::Entry& found : *entries) {
    if (stop()) return absl::CancelledError("stopped while reporting the blocks on disk");
    const uint32_t owner = owner_of(EntryOf(number, found));
    shard->SetOwner(found.place.extent, owner);
    if (owner == 0) unwanted.push_back({found.key, found.place.extent});
  }
  (void)shard->Erase(unwanted);  // if this fails, the next start may find these blocks again
  shard->SetTold();
  return absl::OkStatus();
}

DiskTier::Entry FileDiskTier::EntryOf(uint32_t number, const DiskShard::Entry& found) const {
  return {.key = found.key,
          .location = LocationOf(number, found.place.extent),
          .parent = found.place.parent,
          .payload_bytes = found.place.payload_bytes,
          .raw_pages = found.place.RawPages(),
          .disk_bytes = found.place.extent.bytes()};
}

absl::Status FileDiskTier::TellUnplaced(uint32_t number,
                                        absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                        absl::FunctionRef<bool()> stop) {
  const ShardRef shard = At(number);
  if (shard->unplaced() == 0) return absl::OkStatus();
  return shard->TellUnplaced(
      [&](const DiskShard::Entry& found) { return owner_of(EntryOf(number, found)); }, stop);
}

void FileDiskTier::NoteUnplaced() {
  uint64_t unplaced = 0, bytes = 0;
  for (const ShardRef& shard : All()) {
    unplaced += shard->unplaced();
    bytes += shard->unplaced_bytes().value();
  }
  if (std::exchange(said_unplaced_, unplaced > 0) || unplaced == 0) return;
  Warn(absl::StrCat(options_.directory, ": ", unplaced,
                    " blocks on disk cannot enter the index now; they keep ", bytes,
                    " bytes of disk space, and the daemon tries again later"));
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

// ---- erasing

// If a shard fails to erase, only space in that shard stays allocated, so one shard without
// held-back extents (DiskShard) is enough for OK.
absl::Status FileDiskTier::EraseHeldBack() {
  absl::Status result = absl::UnavailableError("no shard of the disk has reported its blocks yet");
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
    result.Update(shard->Erase({}));  // retries erasures that failed before
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

absl::StatusOr<std::optional<DiskTier::Description>> FileDiskTier::FindUntold(const BlockKey& key) {
  absl::Status failed;
  const bool all_asked = recovered_once_;
  for (const ShardRef& shard : All()) {
    absl::StatusOr<std::optional<Description>> found = shard->FindUntold(key);
    if (found.ok() && *found) return found;
    // An error of a shard that Recover has so far failed to read is ignored.
    if (!found.ok() && (shard->told() || !all_asked)) failed.Update(found.status());
  }
  LARDER_RETURN_IF_ERROR(failed);
  return std::nullopt;
}

DiskTier::GetStatus FileDiskTier::Get(const Read& read) {
  if (read.block.location == DiskLocation::kNone) return GetStatus::kMissing;
  uint32_t number = 0;
  const Extent extent = ExtentOf(read.block.location, &number);
  const ShardRef shard = At(number);
  return shard ? shard->Get(read, extent) : GetStatus::kMissing;
}

// ---- space

void FileDiskTier::SetOwner(DiskLocation location, uint32_t owner) {
  uint32_t number = 0;
  const Extent extent = ExtentOf(location, &number);
  if (const ShardRef shard = At(number)) shard->SetOwner(extent, owner);
}

std::vector<uint32_t> FileDiskTier::FindVictims(ByteCount payload_bytes, WorthOf worth) {
  std::vector<uint32_t> cheapest;
  double cheapest_cost = 0;
  for (const uint32_t number : ShardsByRoom()) {
    const ShardRef shard = At(number);
    if (!shard) continue;
    double cost = 0;
    std::vector<uint32_t> found = shard->FindVictims(payload_bytes, worth, &cost);
    if (found.empty() || (!cheapest.empty() && cost >= cheapest_cost)) continue;
    cheapest = std::move(found);
    cheapest_cost = cost;
  }
  return cheapest;
}

ByteCount FileDiskTier::block_bytes_max() const {
  return geometry_.file_bytes - ByteCount(kRecordHeaderBytesMax);
}

// ShardsByRoom puts healthy shards first, so if the first one is not healthy, none is; evictions
// would not help then.
ByteCount FileDiskTier::free_bytes() const {
  const std::vector<uint32_t> order = ShardsByRoom();
  const ShardRef first = order.empty() ? nullptr : At(order.front());
  if (!first) return ByteCount(0);
  return first->healthy() ? first->free_bytes() : options_.limit;
}

// A small share of the limit, because evictions may have to free this much in every shard before
// one shard has it.
ByteCount FileDiskTier::batch_bytes() const {
  constexpr uint64_t kShare = 8;
  return ByteCount(options_.limit.value() / (kShare * geometry_.shards));
}

// ---- facts

absl::Status FileDiskTier::PutFacts(std::span<const Fact> facts) {
  return facts_->Put(All(), facts);
}

void FileDiskTier::ForEachFact(
    absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) {
  facts_->ForEach(All(), visit);
}

DiskTier::Stats FileDiskTier::stats() const {
  Stats stats;
  stats.limit = options_.limit;
  for (const ShardRef& shard : All()) shard->AddTo(&stats);
  stats.allocated += ByteCount(set_aside_bytes_);
  stats.shards = geometry_.shards;
  stats.shards_set_aside = set_aside_;
  stats.shards_failed = failed_;
  stats.facts = facts_->uses();
  for (const ShardRef& shard : All())
    stats.shards_failed += shard->told() && !shard->writable() ? 1 : 0;
  return stats;
}

}  // namespace larder
