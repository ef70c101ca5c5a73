// The files of a disk tier are damaged while no process has them open.  The next start succeeds, no
// read returns a wrong byte, no damage to a record that is read goes unnoticed, and only blocks
// that the damage can have touched are lost.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace larder::testing {
namespace {

namespace fs = std::filesystem;

constexpr ByteCount kLimit = MiB(160);
constexpr uint64_t kBlocks = 48;
constexpr uint64_t kDamages = 10'000;
constexpr uint64_t kSeeds = 8;
constexpr uint64_t kDamagesPerStart = 24;

// A block without padding between its segments: no hash covers padding, and no reader uses it.
DiskBlock BlockNumbered(uint64_t number) {
  std::mt19937_64 random(number);
  const auto segments = static_cast<uint32_t>(1 + random() % 30);
  const auto bytes = static_cast<uint32_t>(kSegmentAlign * (1 + random() % 500));
  return {number, segments, bytes};
}

std::vector<std::byte> ReadAt(const fs::path& path, uint64_t offset, uint64_t length) {
  std::vector<std::byte> bytes(length);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  LARDER_CHECK(fd >= 0 && pread(fd, bytes.data(), length, static_cast<off_t>(offset)) ==
                              static_cast<ssize_t>(length));
  close(fd);
  return bytes;
}

std::vector<std::byte> ReadFile(const fs::path& path) {
  return ReadAt(path, 0, fs::file_size(path));
}

void WriteAt(const fs::path& path, uint64_t offset, std::span<const std::byte> bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  LARDER_CHECK(fd >= 0 && pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
                              static_cast<ssize_t>(bytes.size()));
  close(fd);
}

// Where the record of a block lies.  The test finds it by its header in the data files, so that it
// does not rely on the catalog.
struct Place {
  fs::path file;
  uint64_t begin = 0, payload = 0, end = 0;  // `end` is the end of the payload's bytes
};

class DiskDamage : public ::testing::Test {
 protected:
  // Makes a directory with kBlocks blocks and some erased ones, and a copy of it.
  void MakePristine(uint64_t seed) {
    directory_ = std::make_unique<TemporaryDirectory>();
    auto tier = Open();
    RecoverAll(*tier);
    std::mt19937_64 random(seed);
    std::vector<std::pair<uint64_t, DiskLocation>> erased;
    for (uint64_t number = 1; number <= kBlocks + 8; ++number) {
      const DiskTier::PutResult put = PutOne(*tier, BlockNumbered(number + seed * 1000));
      ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
      if (number > kBlocks) erased.emplace_back(number + seed * 1000, put.location);
    }
    for (const auto& [number, location] : erased)
      EraseOne(*tier, {BlockNumbered(number).key(), location});
    tier.reset();
    fs::copy(disk(), pristine(), fs::copy_options::recursive);
    FindPlaces(seed);
  }

  void FindPlaces(uint64_t seed) {
    places_.clear();
    std::map<std::string, uint64_t> by_header;
    for (uint64_t i = 1; i <= kBlocks; ++i)
      by_header[EncodeRecordHeader(BlockNumbered(i + seed * 1000).header())] = i + seed * 1000;
    for (const auto& entry : fs::recursive_directory_iterator(disk())) {
      if (entry.path().extension() != ".kv") continue;
      const std::vector<std::byte> bytes = ReadFile(entry.path());
      for (uint64_t at = 0; at < bytes.size(); at += kPageBytes) {
        const std::span rest = std::span(bytes).subspan(at);
        const absl::StatusOr<DecodedHeader> header = DecodeRecordHeader(rest);
        if (!header.ok()) continue;
        const auto known = by_header.find(EncodeRecordHeader(header->header));
        if (known == by_header.end()) continue;
        const uint64_t payload = at + RoundUp(header->header_bytes.value(), kPageBytes);
        places_[known->second] = {entry.path(), at, payload,
                                  payload + header->header.table.PayloadBytes().value()};
      }
    }
    ASSERT_EQ(places_.size(), kBlocks);
  }

  void Restore() {
    fs::remove_all(disk() / "set-aside");
    for (const auto& entry : fs::directory_iterator(pristine())) {
      if (!entry.is_directory()) continue;
      const fs::path name = entry.path().filename();
      fs::remove_all(disk() / name / "catalog");
      fs::copy(entry.path() / "catalog", disk() / name / "catalog", fs::copy_options::recursive);
      fs::copy_file(entry.path() / "FORMAT", disk() / name / "FORMAT",
                    fs::copy_options::overwrite_existing);
    }
    for (const fs::path& file : damaged_files_) {
      fs::copy_file(pristine() / fs::relative(file, disk()), file,
                    fs::copy_options::overwrite_existing);
    }
    damaged_files_.clear();
    damaged_shards_.clear();
    touched_.clear();
  }

  [[nodiscard]] std::unique_ptr<FileDiskTier> Open() {
    FileDiskTier::Options options;
    options.directory = disk();
    options.limit = kLimit;
    auto tier = FileDiskTier::Open(options);
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier.ok() ? *std::move(tier) : nullptr;
  }

  [[nodiscard]] fs::path disk() const { return directory_->path() + "/disk"; }
  [[nodiscard]] fs::path pristine() const { return directory_->path() + "/pristine"; }

  // ---- Kinds of damage.  Each returns whether it changed anything; it may not, if its target is
  // gone.
  [[nodiscard]] bool DamageOnce(std::mt19937_64& random) {
    const uint64_t kind = random() % 20;
    if (kind < 15) return DamageRecord(random, kind);
    if (kind < 17) return DamageDataFile(random);
    if (kind == 17 && random() % 4 == 0) return DamageFormat(random);
    if (random() % 8 == 0) return DamageCatalog(random);
    return DamageRecord(random, 0);
  }

  // Overwrites a part of a record with other bytes, or the whole of it with another record.
  [[nodiscard]] bool DamageRecord(std::mt19937_64& random, uint64_t kind) {
    auto victim = places_.begin();
    std::advance(victim, static_cast<std::ptrdiff_t>(random() % places_.size()));
    const Place& place = victim->second;
    if (!fs::exists(place.file) || fs::file_size(place.file) < place.end) return false;
    if (kind < 8) {  // one bit
      const bool in_header = random() % 4 == 0;
      const uint64_t begin = in_header ? place.begin : place.payload;
      const uint64_t at = begin + random() % ((in_header ? place.payload : place.end) - begin);
      const std::byte byte =
          ReadAt(place.file, at, 1)[0] ^ static_cast<std::byte>(1u << (random() % 8));
      return Overwrite(place.file, at, {&byte, 1});
    }
    if (kind < 11) {  // one page of zeros
      const uint64_t pages = RoundUp(place.end - place.begin, kPageBytes) / kPageBytes;
      const std::vector<std::byte> zeros(kPageBytes);
      return Overwrite(place.file, place.begin + random() % pages * kPageBytes, zeros);
    }
    // Another record, whole or only its header: swapped or stale.
    auto other = places_.begin();
    std::advance(other, static_cast<std::ptrdiff_t>(random() % places_.size()));
    const Place& from = other->second;
    if (!fs::exists(from.file) || fs::file_size(from.file) < from.end) return false;
    const uint64_t room = RoundUp(place.end - place.begin, kPageBytes);
    const uint64_t length = kind < 13 ? std::min(room, RoundUp(from.end - from.begin, kPageBytes))
                                      : std::min<uint64_t>(room, kPageBytes);
    return Overwrite(place.file, place.begin, ReadAt(from.file, from.begin, length));
  }

  [[nodiscard]] bool DamageDataFile(std::mt19937_64& random) {
    auto victim = places_.begin();
    std::advance(victim, static_cast<std::ptrdiff_t>(random() % places_.size()));
    const fs::path file = victim->second.file;
    if (!fs::exists(file) || fs::file_size(file) == 0) return false;
    damaged_files_.insert(file);
    const uint64_t cut = random() % 4 == 0 ? 0 : random() % fs::file_size(file);
    for (const auto& [number, place] : places_) {
      if (place.file == file && place.end > cut) touched_.insert(number);
    }
    if (cut == 0 && random() % 2 == 0) {
      fs::remove(file);
    } else {
      fs::resize_file(file, cut);
    }
    return true;
  }

  [[nodiscard]] bool DamageCatalog(std::mt19937_64& random) {
    std::vector<fs::path> files;
    for (const auto& shard : fs::directory_iterator(disk())) {
      if (!fs::is_directory(shard.path() / "catalog")) continue;
      for (const auto& entry : fs::directory_iterator(shard.path() / "catalog"))
        if (entry.path().filename() != "LOCK") files.push_back(entry.path());
    }
    const fs::path file = files[random() % files.size()];
    damaged_shards_.insert(file.parent_path().parent_path());
    const uint64_t size = fs::file_size(file);
    const uint64_t kind = random() % 4;
    if (kind == 0 || size == 0) {
      fs::remove(file);
    } else if (kind == 1) {
      fs::resize_file(file, random() % size);
    } else {
      const uint64_t at = random() % size;
      const std::byte byte = ReadAt(file, at, 1)[0] ^ static_cast<std::byte>(1u << (random() % 8));
      WriteAt(file, at, {&byte, 1});
    }
    return true;
  }

  // Costs no block: the other shards have the same facts.
  [[nodiscard]] bool DamageFormat(std::mt19937_64& random) {
    const fs::path file = disk() / "shard-00" / "FORMAT";
    if (fs::file_size(file) == 0) return false;
    fs::resize_file(file, random() % fs::file_size(file));
    return true;
  }

  // ---- What is left.
  void CheckAll(uint64_t seed) {
    const std::unique_ptr<FileDiskTier> tier = Open();
    ASSERT_NE(tier, nullptr);
    std::map<Digest, DiskLocation> there;
    for (const DiskTier::Entry& entry : RecoverAll(*tier)) there[entry.key.digest] = entry.location;
    for (uint64_t i = 1; i <= kBlocks; ++i) {
      const uint64_t number = i + seed * 1000;
      const DiskBlock block = BlockNumbered(number);
      const bool may_be_lost =
          touched_.contains(number) || damaged_shards_.contains(places_[number].file.parent_path());
      const auto entry = there.find(block.key().digest);
      if (entry == there.end()) {
        lost_ += may_be_lost ? 0 : 1;
        continue;
      }
      Check(*tier, block, entry->second, number, may_be_lost);
    }
  }

  void Check(FileDiskTier& tier, const DiskBlock& block, DiskLocation location, uint64_t number,
             bool may_be_lost) {
    const DiskAddress address{block.key(), location};
    const auto known = DescribeOne(tier, address);
    if (!known) {
      lost_ += may_be_lost ? 0 : 1;
      return;
    }
    const Got got = GetRange(tier, address, known->header,
                             {0, static_cast<uint32_t>(known->header.table.segments.size()), 0,
                              known->header.table.PayloadBytes().value()});
    if (got.status != DiskTier::GetStatus::kOk) {
      lost_ += may_be_lost ? 0 : 1;
      return;
    }
    wrong_ += std::equal(got.bytes.begin(), got.bytes.end(), block.payload().begin(),
                         block.payload().end())
                  ? 0
                  : 1;
    unnoticed_ += touched_.contains(number) ? 1 : 0;
  }

  uint64_t wrong_ = 0, unnoticed_ = 0, lost_ = 0;
  std::set<fs::path> damaged_shards_;

 private:
  // Notes the records that this changes.  Returns false if the bytes were there already.
  [[nodiscard]] bool Overwrite(const fs::path& file, uint64_t at,
                               std::span<const std::byte> bytes) {
    if (at + bytes.size() <= fs::file_size(file) &&
        std::ranges::equal(ReadAt(file, at, bytes.size()), bytes))
      return false;
    damaged_files_.insert(file);
    WriteAt(file, at, bytes);
    const fs::path before = pristine() / fs::relative(file, disk());
    for (const auto& [number, place] : places_) {
      if (place.file != file || place.begin >= at + bytes.size() || place.end <= at) continue;
      if (fs::file_size(file) < place.end) continue;  // cut off, so it counts as touched already
      if (BytesOf(file, place) != BytesOf(before, place)) {
        touched_.insert(number);
      } else {
        touched_.erase(number);  // restored, as when a bit is flipped twice
      }
    }
    return true;
  }
  static std::vector<std::byte> BytesOf(const fs::path& file, const Place& place) {
    return ReadAt(file, place.begin, place.end - place.begin);
  }

  std::unique_ptr<TemporaryDirectory> directory_;
  std::map<uint64_t, Place> places_;
  std::set<uint64_t> touched_;
  std::set<fs::path> damaged_files_;
};

TEST_F(DiskDamage, IsNoticedAndCostsOnlyWhatItTouched) {
  uint64_t damages = 0, starts = 0;
  const uint64_t wanted = Scaled(kDamages);
  const uint64_t first = TestSeed();
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ASSERT_NO_FATAL_FAILURE(MakePristine(seed));
    std::mt19937_64 random(seed);
    uint64_t done = 0;
    while (done < (wanted + kSeeds - 1) / kSeeds) {
      for (uint64_t i = 0; i < kDamagesPerStart; ++i) done += DamageOnce(random) ? 1 : 0;
      ++starts;
      ASSERT_NO_FATAL_FAILURE(CheckAll(seed));
      Restore();
    }
    damages += done;
  }
  std::printf("%lu damages, %lu starts: %lu wrong, %lu unnoticed, %lu good blocks lost\n", damages,
              starts, wrong_, unnoticed_, lost_);
  EXPECT_EQ(wrong_, 0u);
  EXPECT_EQ(unnoticed_, 0u);
  EXPECT_EQ(lost_, 0u);
}

}  // namespace
}  // namespace larder::testing
