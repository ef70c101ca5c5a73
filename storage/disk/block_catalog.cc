#include "storage/disk/block_catalog.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/disk/directory.h"
#include "storage/disk/erased_names.h"
#include "storage/disk/private_files.h"
#include "storage/format/record.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

enum Family : size_t { kDefault, kPlaces, kHeaders, kFacts, kFamilies };
constexpr std::array<const char*, kFamilies> kFamilyNames = {"default", "places", "headers",
                                                             "facts"};
constexpr const char* kIdentityKey = "shard";  // in the default family
constexpr Duration kBetweenTriesToOpen = std::chrono::seconds(1);

std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

absl::Status From(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = "catalog: " + status.ToString();
  if (status.IsNotSupported()) return absl::FailedPreconditionError(text);
  if (status.IsCorruption() || status.IsInvalidArgument()) return absl::DataLossError(text);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

// Passes RocksDB's warnings and errors on to `warn`, and drops its other messages.
class WarningLogger final : public rocksdb::Logger {
 public:
  explicit WarningLogger(std::function<void(const std::string&)> warn)
      : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL), warn_(std::move(warn)) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    if (!warn_) return;
    std::array<char, 512> text{};
    std::vsnprintf(text.data(), text.size(), format, arguments);
    std::string_view line(text.data());
    while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
    warn_(std::string(line));
  }

 private:
  const std::function<void(const std::string&)> warn_;
};

}  // namespace

struct CatalogMemory::Impl {
  explicit Impl(size_t budget)
      : cache(rocksdb::NewLRUCache(budget)),
        buffers(std::make_shared<rocksdb::WriteBufferManager>(budget / 2, cache)) {}
  std::shared_ptr<rocksdb::Cache> cache;
  // Write buffers are charged to the cache, so that both share one budget.
  std::shared_ptr<rocksdb::WriteBufferManager> buffers;
};

CatalogMemory::CatalogMemory(ByteCount budget) : impl_(std::make_unique<Impl>(budget.value())) {}
CatalogMemory::~CatalogMemory() = default;
ByteCount CatalogMemory::used() const { return ByteCount(impl_->cache->GetUsage()); }

struct BlockCatalog::Impl {
  // An open RocksDB database.
  struct Database {
    std::unique_ptr<rocksdb::DB> db;
    std::vector<rocksdb::ColumnFamilyHandle*> families;
    bool can_write = true;

    Database() = default;
    Database(const Database&) = delete;
    Database& operator=(const Database&) = delete;
    ~Database() {
      for (rocksdb::ColumnFamilyHandle* family : families)
        (void)db->DestroyColumnFamilyHandle(family);
      if (db) (void)db->Close();
    }
  };
  // A reference to the open database, counted in `uses` until it is destroyed.  OpenAnew, which
  // reopens the database, does not close it before that.
  using DatabaseRef = std::shared_ptr<Database>;
  enum class Use : uint8_t {
    kShort,
    kLong,  // may last seconds; OpenAnew fails and does not wait for its end
  };

  Options options;
  std::shared_ptr<rocksdb::Statistics> statistics;
  Mutex database_mu;
  CondVar changed;  // signalled when `opening` becomes false or `uses` becomes 0
  // nullptr while the database is closed.
  std::unique_ptr<Database> database LARDER_GUARDED_BY(database_mu);
  // True while a thread reopens the database.
  bool opening LARDER_GUARDED_BY(database_mu) = false;
  size_t uses LARDER_GUARDED_BY(database_mu) = 0;
  size_t long_uses LARDER_GUARDED_BY(database_mu) = 0;  // included in `uses`
  // No thread tries to reopen the database before this time.
  TimePoint open_again LARDER_GUARDED_BY(database_mu){};
  std::atomic<uint64_t> unread_names{0};
  // Changed only by threads that hold BlockCatalog::mu_, read by any thread.
  ErasedNames erased;
  // Set by a failed write; ForWriting makes the database writable again.  Changed only by threads
  // that hold BlockCatalog::mu_.
  std::atomic<bool> failed{false};

  // Returns 1/n of the disk space that the catalog may take, but at least `least` and at most
  // `most`.
  [[nodiscard]] uint64_t Share(uint64_t n, ByteCount least, ByteCount most) const {
    return std::clamp(options.disk_bytes_max.value() / n, least.value(), most.value());
  }

  // kFail is for reopening the database: an empty database must not replace a missing one while the
  // shard's blocks are in use.
  enum class IfMissing : uint8_t { kCreate, kFail };
  [[nodiscard]] rocksdb::Options DbOptions(IfMissing if_missing) const {
    rocksdb::Options out;
    out.create_if_missing = if_missing == IfMissing::kCreate;
    out.create_missing_column_families = out.create_if_missing;
    out.info_log = std::make_shared<WarningLogger>(options.warn);
    out.statistics = statistics;
    out.write_buffer_manager = options.memory->impl_->buffers;
    out.max_total_wal_size = Share(4, MiB(1), MiB(32));
    out.max_manifest_file_size = MiB(1).value();
    out.manifest_preallocation_size = KiB(64).value();
    out.max_open_files = 128;
    out.max_background_jobs = 2;
    out.skip_stats_update_on_db_open = true;
    out.avoid_flush_during_shutdown = true;  // the write-ahead log has the data
    return out;
  }

  [[nodiscard]] rocksdb::ColumnFamilyOptions FamilyOptions(size_t family) const {
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = options.memory->impl_->cache;
    table.cache_index_and_filter_blocks = true;
    table.block_size = KiB(8).value();
    // A commit looks up its keys in this family, and usually finds none.
    if (family == kPlaces) table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    rocksdb::ColumnFamilyOptions out;
    out.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    out.compression = rocksdb::kLZ4Compression;
    out.write_buffer_size = Share(16, KiB(256), family == kHeaders ? MiB(8) : MiB(4));
    out.target_file_size_base = Share(16, MiB(1), MiB(16));
    out.max_bytes_for_level_base = 4 * out.target_file_size_base;
    out.level_compaction_dynamic_level_bytes = true;
    return out;
  }

  [[nodiscard]] std::vector<rocksdb::ColumnFamilyDescriptor> Families() const {
    std::vector<rocksdb::ColumnFamilyDescriptor> out;
    for (size_t family = 0; family < kFamilies; ++family)
      out.emplace_back(kFamilyNames[family], FamilyOptions(family));
    return out;
  }

  [[nodiscard]] absl::Status Open() LARDER_EXCLUDES(database_mu);
  // Returns the database for a reader, after waiting while another thread reopens it.  Returns
  // Unavailable if the database is closed and cannot be reopened now.
  [[nodiscard]] absl::StatusOr<DatabaseRef> ForReading(Use use = Use::kShort)
      LARDER_EXCLUDES(database_mu);
  // Returns the database for a writer.  Makes it writable first if a write has failed; returns an
  // error if that fails.  REQUIRES: one writer at a time (BlockCatalog::mu_).
  [[nodiscard]] absl::StatusOr<DatabaseRef> ForWriting() LARDER_EXCLUDES(database_mu);
  // Called after a failed write.  Tells RocksDB to resume, and returns true if it could do so
  // without being reopened.
  [[nodiscard]] bool GoesOn() LARDER_EXCLUDES(database_mu);
  [[nodiscard]] absl::Status OpenAnew() LARDER_EXCLUDES(database_mu);
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Database>> OpenToWrite(IfMissing if_missing) const;
  [[nodiscard]] std::unique_ptr<Database> OpenToRead() const;  // nullptr if it cannot be opened
  [[nodiscard]] DatabaseRef Lend(Use use) LARDER_REQUIRES(database_mu);
  void GiveBack(Use use) LARDER_EXCLUDES(database_mu);
  // Sets `database` and ends `opening`.
  void Opened(std::unique_ptr<Database> now) LARDER_EXCLUDES(database_mu);
  [[nodiscard]] absl::Status Write(Database& to, rocksdb::WriteBatch* batch, bool sync);

  // What the catalog has stored for a key.  If `there` is true and `place` is nullopt, the entry is
  // damaged.  If `read` is an error, nothing is known of the key.
  struct Found {
    absl::Status read;
    bool there = false;
    std::optional<CatalogPlace> place;
  };
  [[nodiscard]] std::vector<Found> PlacesOf(Database& in, std::span<const std::string> names) const;
};

absl::Status BlockCatalog::Impl::Open() {
  LARDER_ASSIGN_OR_RETURN(auto opened, OpenToWrite(IfMissing::kCreate));
  MutexLock lock(database_mu);
  database = std::move(opened);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlockCatalog::Impl::Database>> BlockCatalog::Impl::OpenToWrite(
    IfMissing if_missing) const {
  LARDER_RETURN_IF_ERROR(options.faults->StatusAt(FaultPoint::kCatalogOpen));
  auto opened = std::make_unique<Database>();
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(DbOptions(if_missing), options.directory,
                                                   Families(), &opened->families, &db);
  opened->db.reset(db);
  if (status.ok()) return opened;
  // A missing file is damage, too, although RocksDB reports it as an I/O error.
  return status.IsPathNotFound() || (status.IsIOError() && !status.IsNoSpace() &&
                                     status.ToString().find("No such file") != std::string::npos)
             ? absl::DataLossError("catalog: " + status.ToString())
             : From(status);
}

std::unique_ptr<BlockCatalog::Impl::Database> BlockCatalog::Impl::OpenToRead() const {
  auto opened = std::make_unique<Database>();
  opened->can_write = false;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(
      DbOptions(IfMissing::kFail), options.directory, Families(), &opened->families, &db);
  opened->db.reset(db);
  return status.ok() ? std::move(opened) : nullptr;
}

BlockCatalog::Impl::DatabaseRef BlockCatalog::Impl::Lend(Use use) {
  ++uses;
  if (use == Use::kLong) ++long_uses;
  return {database.get(), [this, use](Database*) { GiveBack(use); }};
}

void BlockCatalog::Impl::GiveBack(Use use) {
  MutexLock lock(database_mu);
  if (use == Use::kLong) --long_uses;
  if (--uses == 0) changed.NotifyAll();
}

void BlockCatalog::Impl::Opened(std::unique_ptr<Database> now) {
  MutexLock lock(database_mu);
  database = std::move(now);
  if (!database || !database->can_write) open_again = SteadyNow() + kBetweenTriesToOpen;
  opening = false;
  changed.NotifyAll();
}

absl::StatusOr<BlockCatalog::Impl::DatabaseRef> BlockCatalog::Impl::ForReading(Use use) {
  {
    MutexLock lock(database_mu);
    while (opening) changed.Wait(database_mu);
    if (database) return Lend(use);
    if (SteadyNow() < open_again)
      return absl::UnavailableError(
          "catalog: could not be reopened after a failed write; the next attempt is within 1 s");
    opening = true;
  }
  // A reader reopens the database itself, because in a process that only reads no write would ever
  // do so.
  Opened(OpenToRead());
  MutexLock lock(database_mu);
  while (opening) changed.Wait(database_mu);
  if (!database) return absl::UnavailableError("catalog: cannot be opened, not even for reading");
  return Lend(use);
}

// The reference is destroyed before GoesOn returns, because OpenAnew, which may follow, waits until
// there is no reference.
bool BlockCatalog::Impl::GoesOn() {
  DatabaseRef now;
  {
    MutexLock lock(database_mu);
    while (opening) changed.Wait(database_mu);
    if (!database || !database->can_write) return false;
    now = Lend(Use::kShort);
  }
  return now->db->Resume().ok();
}

absl::StatusOr<BlockCatalog::Impl::DatabaseRef> BlockCatalog::Impl::ForWriting() {
  if (failed) {
    if (!GoesOn()) {
      LARDER_RETURN_IF_ERROR(OpenAnew());
    }
    failed = false;
  }
  return ForReading();
}

// If RocksDB cannot resume, the database is closed and opened again.  On a disk that accepts no
// writes, opening it would fail, and blocks that could be read before would become unreadable.  So
// the disk is probed first, and if the database cannot be opened for writing after it was closed,
// it is opened read-only.
absl::Status BlockCatalog::Impl::OpenAnew() {
  LARDER_RETURN_IF_ERROR(TryToWriteIn(options.directory));
  std::unique_ptr<Database> last;
  {
    MutexLock lock(database_mu);
    while (opening) changed.Wait(database_mu);
    if (SteadyNow() < open_again)
      return absl::UnavailableError(
          "catalog: could not be reopened after a failed write; the next attempt is within 1 s");
    if (long_uses > 0)
      return absl::UnavailableError(
          "catalog: not reopened after a failed write while a scan or a compaction uses it");
    opening = true;
    while (uses > 0) changed.Wait(database_mu);
    last = std::move(database);
  }
  last.reset();
  absl::StatusOr<std::unique_ptr<Database>> now = OpenToWrite(IfMissing::kFail);
  Opened(now.ok() ? *std::move(now) : OpenToRead());
  return now.status();
}

absl::Status BlockCatalog::Impl::Write(Database& to, rocksdb::WriteBatch* batch, bool sync) {
  rocksdb::WriteOptions how;
  how.sync = sync;
  const rocksdb::Status status = to.db->Write(how, batch);
  failed = !status.ok();
  if (sync && status.ok()) erased.Clear();
  return From(status);
}

std::vector<BlockCatalog::Impl::Found> BlockCatalog::Impl::PlacesOf(
    Database& in, std::span<const std::string> names) const {
  const std::vector<rocksdb::Slice> slices(names.begin(), names.end());
  std::vector<rocksdb::PinnableSlice> values(names.size());
  std::vector<rocksdb::Status> statuses(names.size());
  in.db->MultiGet(rocksdb::ReadOptions(), in.families[kPlaces], slices.size(), slices.data(),
                  values.data(), statuses.data());
  const absl::Status fault = options.faults->StatusAt(FaultPoint::kCatalogRead);
  std::vector<Found> found(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    found[i].read = fault;
    if (!statuses[i].ok() && !statuses[i].IsNotFound() && !statuses[i].IsCorruption())
      found[i].read = From(statuses[i]);
    if (!found[i].read.ok() || statuses[i].IsNotFound()) continue;
    found[i].there = true;
    if (statuses[i].ok()) found[i].place = PlaceFrom(ViewOf(values[i]));
  }
  return found;
}

BlockCatalog::BlockCatalog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BlockCatalog::~BlockCatalog() = default;

absl::StatusOr<std::unique_ptr<BlockCatalog>> BlockCatalog::Open(const Options& options) {
  LARDER_CHECK(options.memory != nullptr && options.faults != nullptr);
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->statistics = rocksdb::CreateDBStatistics();
  impl->statistics->set_stats_level(rocksdb::StatsLevel::kExceptHistogramOrTimers);
  // Creates the directory, because RocksDB would warn if it were missing.  Errors are ignored here:
  // impl->Open reports what is wrong.
  std::error_code ignored;
  std::filesystem::create_directory(options.directory, ignored);
  LARDER_RETURN_IF_ERROR(impl->Open());
  return absl::WrapUnique(new BlockCatalog(std::move(impl)));
}

absl::Status BlockCatalog::Commit(std::span<const CatalogEntry> entries) {
  LARDER_RETURN_IF_ERROR(impl_->options.faults->StatusAt(FaultPoint::kCatalogCommit));
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (const CatalogEntry& entry : entries) names.push_back(KeyOf(entry.key));
  MutexLock lock(mu_);
  LARDER_ASSIGN_OR_RETURN(const auto to, impl_->ForWriting());
  const std::vector<Impl::Found> former = impl_->PlacesOf(*to, names);
  rocksdb::WriteBatch batch;
  for (size_t i = 0; i < entries.size(); ++i) {
    (void)batch.Put(to->families[kPlaces], names[i], PlaceValue(entries[i].place));
    (void)batch.Put(to->families[kHeaders], names[i], HeaderValue(entries[i]));
    // A former extent belongs to this key until it is erased, even if the write below fails.
    if (former[i].place) superseded_.insert({entries[i].key, former[i].place->extent});
    if (!former[i].read.ok()) ++impl_->unread_names;
  }
  return impl_->Write(*to, &batch, true);
}

absl::Status BlockCatalog::Erase(std::span<const Room> rooms, std::vector<bool>* erased) {
  MutexLock lock(mu_);
  std::vector<bool> named;
  absl::Status status = EraseNames(rooms, &named);
  if (erased != nullptr) {
    *erased = named;
    for (size_t i = 0; i < rooms.size(); ++i)
      (*erased)[i] = named[i] || superseded_.contains(rooms[i]);
  }
  LARDER_RETURN_IF_ERROR(status);
  for (const Room& room : rooms) superseded_.erase(room);
  return status;
}

absl::Status BlockCatalog::Forget(std::span<const Room> rooms) {
  MutexLock lock(mu_);
  std::vector<bool> named;
  absl::Status status = EraseNames(rooms, &named);
  // The extent belongs to its key until Erase, even if the removal of the key has failed.
  for (size_t i = 0; i < rooms.size(); ++i) {
    if (named[i]) superseded_.insert(rooms[i]);
  }
  return status;
}

// Removes the keys of those `rooms` whose key names their extent or has a damaged entry, and sets
// (*named)[i] to true for these.  If any key cannot be read, removes none and sets all to false; if
// the removal fails, each of these keys may or may not be removed.
absl::Status BlockCatalog::EraseNames(std::span<const Room> rooms, std::vector<bool>* named) {
  named->assign(rooms.size(), false);
  LARDER_RETURN_IF_ERROR(impl_->options.faults->StatusAt(FaultPoint::kCatalogErase));
  std::vector<std::string> names;
  for (const Room& room : rooms) names.push_back(KeyOf(room.key));
  LARDER_ASSIGN_OR_RETURN(const auto from, impl_->ForWriting());
  const std::vector<Impl::Found> found = impl_->PlacesOf(*from, names);
  for (const Impl::Found& each : found) {
    if (!each.read.ok()) return each.read;
  }
  rocksdb::WriteBatch batch;
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < rooms.size(); ++i) {
    const auto& [read, there, place] = found[i];
    // A damaged entry names no extent.  It is removed too, and counts as naming the extent of
    // rooms[i].
    (*named)[i] = there && (!place || place->extent == rooms[i].extent);
    if (!(*named)[i]) continue;
    keys.push_back(rooms[i].key);
    (void)batch.Delete(from->families[kPlaces], names[i]);
    (void)batch.Delete(from->families[kHeaders], names[i]);
  }
  return impl_->Write(*from, &batch, impl_->erased.Note(keys));
}

absl::Status BlockCatalog::Sync() {
  MutexLock lock(mu_);
  LARDER_ASSIGN_OR_RETURN(const auto to, impl_->ForWriting());
  absl::Status status = From(to->db->FlushWAL(/*sync=*/true));
  if (status.ok()) impl_->erased.Clear();
  return status;
}

std::vector<bool> BlockCatalog::MayComeBack(std::span<const BlockKey> keys) const {
  return impl_->erased.Contain(keys);
}

absl::Status BlockCatalog::Describe(std::span<const BlockKey> keys,
                                    std::span<std::optional<Description>> out) {
  LARDER_CHECK(keys.size() == out.size());
  LARDER_RETURN_IF_ERROR(impl_->options.faults->StatusAt(FaultPoint::kCatalogRead));
  LARDER_ASSIGN_OR_RETURN(const auto in, impl_->ForReading());
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const BlockKey& key : keys) names.push_back(KeyOf(key));
  const std::vector<rocksdb::Slice> slices(names.begin(), names.end());
  std::vector<rocksdb::PinnableSlice> values(keys.size());
  std::vector<rocksdb::Status> statuses(keys.size());
  in->db->MultiGet(rocksdb::ReadOptions(), in->families[kHeaders], slices.size(), slices.data(),
                   values.data(), statuses.data());
  absl::Status result;
  for (size_t i = 0; i < keys.size(); ++i) {
    out[i].reset();
    if (statuses[i].ok()) out[i] = DescriptionFrom(ViewOf(values[i]));
    if (statuses[i].ok() || statuses[i].IsNotFound() || statuses[i].IsCorruption()) continue;
    result.Update(From(statuses[i]));
  }
  return result;
}

absl::Status BlockCatalog::Places(std::span<const BlockKey> keys,
                                  std::span<std::optional<CatalogPlace>> out) {
  LARDER_CHECK(keys.size() == out.size());
  LARDER_ASSIGN_OR_RETURN(const auto in, impl_->ForReading());
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const BlockKey& key : keys) names.push_back(KeyOf(key));
  absl::Status result;
  const std::vector<Impl::Found> found = impl_->PlacesOf(*in, names);
  for (size_t i = 0; i < keys.size(); ++i) {
    out[i] = found[i].place;
    result.Update(found[i].read);
  }
  return result;
}

absl::Status BlockCatalog::ForEachPlace(
    absl::FunctionRef<bool(const BlockKey&, const CatalogPlace&)> visit) {
  LARDER_ASSIGN_OR_RETURN(const auto in, impl_->ForReading(Impl::Use::kLong));
  rocksdb::ReadOptions options;
  options.readahead_size = MiB(1).value();
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(in->db->NewIterator(options, in->families[kPlaces]));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    LARDER_RETURN_IF_ERROR(impl_->options.faults->StatusAt(FaultPoint::kCatalogScan));
    const std::optional<BlockKey> key = KeyFrom(ViewOf(it->key()));
    const std::optional<CatalogPlace> place = PlaceFrom(ViewOf(it->value()));
    if (!key || !place)
      return absl::DataLossError("catalog: an entry of the column family places is malformed");
    if (!visit(*key, *place)) return absl::OkStatus();
  }
  return From(it->status());
}

absl::Status BlockCatalog::PutFacts(std::span<const DiskTier::Fact> facts) {
  LARDER_RETURN_IF_ERROR(impl_->options.faults->StatusAt(FaultPoint::kCatalogFacts));
  MutexLock lock(mu_);
  LARDER_ASSIGN_OR_RETURN(const auto to, impl_->ForWriting());
  rocksdb::WriteBatch batch;
  for (const DiskTier::Fact& fact : facts) {
    if (fact.value.empty()) {
      (void)batch.Delete(to->families[kFacts], fact.key);
    } else {
      (void)batch.Put(to->families[kFacts], fact.key, fact.value);
    }
  }
  return impl_->Write(*to, &batch, true);
}

absl::Status BlockCatalog::ForEachFact(
    absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) {
  LARDER_ASSIGN_OR_RETURN(const auto in, impl_->ForReading());
  const std::unique_ptr<rocksdb::Iterator> it(
      in->db->NewIterator(rocksdb::ReadOptions(), in->families[kFacts]));
  for (it->SeekToFirst(); it->Valid(); it->Next())
    visit(it->key().ToString(), it->value().ToString());
  return From(it->status());
}

absl::StatusOr<std::string> BlockCatalog::Identity() {
  LARDER_ASSIGN_OR_RETURN(const auto in, impl_->ForReading());
  std::string identity;
  const rocksdb::Status status =
      in->db->Get(rocksdb::ReadOptions(), in->families[kDefault], kIdentityKey, &identity);
  if (!status.ok() && !status.IsNotFound()) return From(status);
  return identity;
}

absl::Status BlockCatalog::SetIdentity(const std::string& identity) {
  MutexLock lock(mu_);
  LARDER_ASSIGN_OR_RETURN(const auto to, impl_->ForWriting());
  rocksdb::WriteBatch batch;
  (void)batch.Put(to->families[kDefault], kIdentityKey, identity);
  return impl_->Write(*to, &batch, true);
}

void BlockCatalog::Compact() {
  const auto in = impl_->ForReading(Impl::Use::kLong);
  if (!in.ok()) return;
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  for (rocksdb::ColumnFamilyHandle* family : (*in)->families)
    (void)(*in)->db->CompactRange(options, family, nullptr, nullptr);
}

uint64_t BlockCatalog::unread_names() const { return impl_->unread_names; }

bool BlockCatalog::writable() const { return !impl_->failed; }

absl::Status BlockCatalog::MakeWritable() {
  MutexLock lock(mu_);
  return impl_->ForWriting().status();
}

ByteCount BlockCatalog::disk_bytes() const {
  constexpr uint64_t kStatBlockBytes = 512;
  uint64_t bytes = 0;
  (void)ForEachIn(impl_->options.directory, [&](const std::filesystem::directory_entry& entry) {
    struct stat found {};
    if (stat(entry.path().c_str(), &found) == 0)
      bytes += static_cast<uint64_t>(found.st_blocks) * kStatBlockBytes;
  });
  return ByteCount(bytes);
}

ByteCount BlockCatalog::written_bytes() const {
  const rocksdb::Statistics& s = *impl_->statistics;
  return ByteCount(s.getTickerCount(rocksdb::WAL_FILE_BYTES) +
                   s.getTickerCount(rocksdb::FLUSH_WRITE_BYTES) +
                   s.getTickerCount(rocksdb::COMPACT_WRITE_BYTES));
}

}  // namespace larder
