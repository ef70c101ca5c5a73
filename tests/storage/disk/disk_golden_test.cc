// The disk format as it was written when version 1 was made (tests/golden/disk_v1, described by
// disk_v1.json): a later build reads all of it, and writes the same bytes.
//
// The directory is made from its description only when the format gets a new version, by
//   LARDER_TEST_GOLDEN_DIR=DIR disk_golden_test --gtest_filter=*WritesTheGoldenDirectory
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/disk/block_catalog.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

const fs::path kGolden = LARDER_GOLDEN_DIR;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  LARDER_CHECK(std::ofstream(path, std::ios::binary) << bytes);
}

std::span<const std::byte> Bytes(const std::string& s) { return std::as_bytes(std::span(s)); }

Digest Parsed(const std::string& hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  Digest digest;
  LARDER_CHECK(bytes.size() == digest.bytes.size());
  std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
  return digest;
}

std::string NameOf(const BlockKey& key) {
  return absl::StrCat(key.variant.Hex(), "/", key.digest.Hex());
}

template <class T>
void Append(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// A block that disk_v1.json describes.
class GoldenBlock {
 public:
  explicit GoldenBlock(const nlohmann::json& json)
      : header_(HeaderOf(json)), pages_(PagesFor(header_.table.PayloadBytes())) {
    const uint64_t salt = json.at("salt");
    uint64_t at = 0;
    for (const Segment& segment : header_.table.segments) {
      at = RoundUp(at, kSegmentAlign);
      for (const uint64_t end = at + segment.bytes; at < end; ++at)
        pages_.bytes()[at] = static_cast<std::byte>(7 * at + at / 256 + 29 * salt);
    }
    HashPayload(payload(), &header_.table);
    for (uint32_t i = 0; i < header_.block_tokens; ++i)
      tokens_.push_back(json.at("first_token").get<uint32_t>() + i);
  }

  [[nodiscard]] const RecordHeader& header() const { return header_; }
  [[nodiscard]] const BlockKey& key() const { return header_.key; }
  [[nodiscard]] const std::vector<uint32_t>& tokens() const { return tokens_; }
  [[nodiscard]] std::span<const std::byte> payload() const {
    return pages_.bytes().first(header_.table.PayloadBytes().value());
  }
  [[nodiscard]] DiskTier::NewBlock AsNew() const {
    return {.header = &header_, .tokens = tokens_, .payload = payload()};
  }
  // Returns the record as it lies in a data file, without the padding behind it.
  [[nodiscard]] std::string Record() const {
    std::string record = EncodeRecordHeader(header_);
    record.resize(RoundUp(record.size(), kPageBytes));
    record.append(reinterpret_cast<const char*>(payload().data()), payload().size());
    return record;
  }
  // Returns what the catalog stores about the block (docs/format.md), in `places` and in `headers`.
  [[nodiscard]] std::string PlaceValue(uint32_t file, uint64_t offset) const {
    std::string value;
    for (const uint64_t number : {uint64_t{file}, offset / kPageBytes, pages(), uint64_t{0}})
      Append(static_cast<uint32_t>(number), &value);
    Append(uint64_t{payload().size()}, &value);
    Append(header_.parent, &value);
    return value;
  }
  [[nodiscard]] std::string HeaderValue() const {
    std::string value = EncodeRecordHeader(header_);
    for (const uint32_t token : tokens_) Append(token, &value);
    return value;
  }
  [[nodiscard]] uint64_t pages() const {
    return RoundUp(EncodeRecordHeader(header_).size(), kPageBytes) / kPageBytes +
           PagesFor(header_.table.PayloadBytes());
  }

 private:
  static RecordHeader HeaderOf(const nlohmann::json& json) {
    RecordHeader header;
    header.key = {Parsed(json.at("variant")), Parsed(json.at("digest"))};
    header.parent = Parsed(json.at("parent"));
    header.block_tokens = json.at("block_tokens");
    header.first_layer = json.at("first_layer");
    header.layout = json.at("layout");
    header.dtype = json.at("dtype");
    for (int times = json.at("repeat"); times > 0; --times) {
      for (const auto& s : json.at("segments"))
        header.table.segments.push_back({s.at(0), Codec(s.at(1).get<int>()), s.at(2), 0});
    }
    return header;
  }

  RecordHeader header_;
  std::vector<uint32_t> tokens_;
  PageBuffer pages_;
};

using GoldenBlocks = std::vector<GoldenBlock>;

// Where each record lies in the data files.  The test finds this without relying on the catalogs.
struct Place {
  fs::path file;
  uint64_t offset = 0;
};
std::map<std::string, Place> RecordsIn(const fs::path& directory) {
  std::map<std::string, Place> records;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.path().extension() != ".kv") continue;
    const std::string file = ReadFile(entry.path());
    for (uint64_t at = 0; at < file.size(); at += kPageBytes) {
      const auto decoded = DecodeRecordHeader(Bytes(file).subspan(at));
      if (!decoded.ok()) continue;
      const uint64_t bytes = RoundUp(decoded->header_bytes.value(), kPageBytes) +
                             decoded->header.table.PayloadBytes().value();
      records[file.substr(at, bytes)] = {.file = entry.path(), .offset = at};
    }
  }
  return records;
}

// Returns the contents of all logs of a directory's catalogs.  RocksDB stores values there
// unchanged.
std::string LogsIn(const fs::path& directory) {
  std::string logs;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == ".log") logs += ReadFile(entry.path());
  }
  return logs;
}

class DiskGolden : public ::testing::Test {
 protected:
  DiskGolden() : json_(nlohmann::json::parse(ReadFile(kGolden / "disk_v1.json"))) {}

  [[nodiscard]] GoldenBlocks Blocks(const char* which) const {
    GoldenBlocks blocks;
    for (const auto& block : json_.at(which)) blocks.emplace_back(block);
    return blocks;
  }
  // Returns the blocks that the directory has.
  [[nodiscard]] GoldenBlocks LiveBlocks() const {
    GoldenBlocks blocks = Blocks("first");
    for (GoldenBlock& block : Blocks("second")) blocks.push_back(std::move(block));
    return blocks;
  }
  // Copies the golden directory as its daemon left it; data files get their whole length again.
  void LayOut() const {
    fs::remove_all(disk());
    fs::copy(kGolden / "disk_v1", disk(), fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(disk())) {
      if (entry.path().extension() == ".kv")
        fs::resize_file(entry.path(), json_.at("file_bytes").get<uint64_t>());
    }
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<FileDiskTier>> Open() const {
    FileDiskTier::Options options;
    options.directory = disk();
    options.limit = ByteCount(json_.at("limit").get<uint64_t>());
    return FileDiskTier::Open(options);
  }
  void OpenAndRecover() {
    tier_.reset();
    auto tier = Open();
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    entries_.clear();
    for (const DiskTier::Entry& entry : RecoverAll(*tier_)) entries_[NameOf(entry.key)] = entry;
  }
  [[nodiscard]] DiskAddress AddressOf(const GoldenBlock& block) const {
    return {block.key(), entries_.at(NameOf(block.key())).location};
  }
  // Returns what is wrong with a block, or an empty string if all of it is there.
  [[nodiscard]] std::string WrongWith(const GoldenBlock& block) const {
    if (!entries_.contains(NameOf(block.key()))) return "is not there";
    const DiskTier::Entry& entry = entries_.at(NameOf(block.key()));
    if (entry.parent != block.header().parent) return "has another parent";
    if (entry.payload_bytes.value() != block.payload().size()) return "has another size";
    if (entry.disk_bytes.value() != block.pages() * kPageBytes) return "takes other room";
    const auto known = DescribeOne(*tier_, AddressOf(block));
    if (!known) return "has no description";
    if (known->header != block.header()) return "has another header";
    if (known->tokens != block.tokens()) return "has other tokens";
    for (const uint32_t first_layer : {0u, 1u}) {
      SegmentRange range;
      if (!block.header().table.Range(first_layer, 0, &range).ok()) continue;
      const Got got = GetRange(*tier_, AddressOf(block), known->header, range);
      if (got.status != DiskTier::GetStatus::kOk) return ToString(got.status);
      if (!std::equal(got.bytes.begin(), got.bytes.end(), block.payload().begin() + range.begin,
                      block.payload().begin() + range.end))
        return "has other bytes";
    }
    return "";
  }
  void ExpectAllThere() const {
    const GoldenBlocks blocks = LiveBlocks();
    for (const GoldenBlock& block : blocks) EXPECT_EQ(WrongWith(block), "") << NameOf(block.key());
    EXPECT_EQ(entries_.size(), blocks.size());
  }
  void ExpectFacts() const {
    nlohmann::json facts = nlohmann::json::object();
    tier_->ForEachFact([&](const std::string& key, const std::string& value) {
      if (!value.empty()) facts[key] = value;
    });
    EXPECT_EQ(facts, json_.at("facts"));
  }

  // Two processes write, so that the catalog has tables and a log.
  void Write() {
    fs::remove_all(disk());
    ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
    PutAll(Blocks("first"));
    PutAll(Blocks("gone"));
    for (const auto& [key, value] : json_.at("facts_before").items())
      ASSERT_TRUE(tier_->PutFact(key, value).ok());
    ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
    for (const GoldenBlock& block : Blocks("gone")) EraseOne(*tier_, AddressOf(block));
    PutAll(Blocks("second"));
    for (const auto& [key, value] : json_.at("facts").items())
      ASSERT_TRUE(tier_->PutFact(key, value).ok());
    ASSERT_TRUE(tier_->PutFact("forgotten", "").ok());
    tier_.reset();
  }
  void PutAll(const GoldenBlocks& blocks) {
    std::vector<DiskTier::NewBlock> news;
    for (const GoldenBlock& block : blocks) news.push_back(block.AsNew());
    std::vector<DiskTier::PutResult> results(news.size());
    tier_->Put(news, results);
    for (const DiskTier::PutResult& result : results)
      ASSERT_EQ(result.status, DiskTier::PutStatus::kOk);
  }

  [[nodiscard]] std::string Format(int version) const {
    return absl::StrCat("larder-disk-tier ", version, "\nshards ", json_.at("shards").get<int>(),
                        "\nfile_bytes ", json_.at("file_bytes").get<int>(), "\n");
  }
  [[nodiscard]] fs::path disk() const { return fs::path(directory_.path()) / "disk"; }
  [[nodiscard]] fs::path Shard(uint32_t number) const {
    return disk() / absl::StrCat("shard-0", number);
  }

  const TemporaryDirectory directory_;
  const nlohmann::json json_;
  std::unique_ptr<FileDiskTier> tier_;
  std::map<std::string, DiskTier::Entry> entries_;  // by NameOf
};

TEST_F(DiskGolden, IsReadByteForByte) {
  LayOut();
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  ExpectAllThere();
  ExpectFacts();
  EXPECT_EQ(tier_->stats().damaged, 0u);
  EXPECT_EQ(tier_->stats().shards_set_aside, 0u);
}

// The next daemon continues in the directory, and the one after that finds the blocks of both.
TEST_F(DiskGolden, TheNextDaemonContinuesInIt) {
  LayOut();
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  PutAll(Blocks("gone"));
  ASSERT_TRUE(tier_->PutFact("forgotten", "back").ok());
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  for (const GoldenBlock& block : Blocks("gone")) {
    EXPECT_EQ(WrongWith(block), "");
    EraseOne(*tier_, AddressOf(block));
  }
  ASSERT_TRUE(tier_->PutFact("forgotten", "").ok());
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  ExpectAllThere();
  ExpectFacts();
}

// The directory gets an id when it is opened for the first time, and keeps it.
TEST_F(DiskGolden, GetsAnIdWhenItIsFirstOpened) {
  LayOut();
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  const std::string first = ReadFile(Shard(0) / "FORMAT"), second = ReadFile(Shard(1) / "FORMAT");
  EXPECT_THAT(first, MatchesRegex("larder-disk-tier 4\nshards 2\nfile_bytes [0-9]+\n"
                                  "directory [0-9a-f]+\nshard 0\n"));
  EXPECT_EQ(first.substr(0, first.size() - 2), second.substr(0, second.size() - 2));
  EXPECT_THAT(second, ::testing::EndsWith("shard 1\n"));
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  EXPECT_EQ(ReadFile(Shard(0) / "FORMAT"), first);
  ExpectAllThere();
}

// The only difference is the version of the directory: records that name no content are those of
// version 1.
TEST_F(DiskGolden, IsWhatThisBuildWrites) {
  ASSERT_NO_FATAL_FAILURE(Write());
  constexpr int kVersion = 4;
  for (const auto& [directory, version] :
       {std::pair(kGolden / "disk_v1", json_.at("version").get<int>()),
        std::pair(disk(), kVersion)}) {
    SCOPED_TRACE(directory);
    const auto records = RecordsIn(directory);
    for (const GoldenBlock& block : LiveBlocks())
      EXPECT_TRUE(records.contains(block.Record())) << NameOf(block.key());
    const std::string logs = LogsIn(directory);
    for (const GoldenBlock& block : Blocks("second")) {
      const Place& place = records.at(block.Record());
      EXPECT_TRUE(absl::StrContains(logs, block.PlaceValue(0, place.offset)))
          << NameOf(block.key());
      EXPECT_TRUE(absl::StrContains(logs, block.HeaderValue())) << NameOf(block.key());
    }
    for (const char* shard : {"shard-00", "shard-01"})
      EXPECT_THAT(ReadFile(directory / shard / "FORMAT"), StartsWith(Format(version)));
  }
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  ExpectAllThere();
  ExpectFacts();
}

// ---- Later versions.

// The directory is refused if any of its shards names a newer version, because a newer daemon may
// have died while it changed the shards.
TEST_F(DiskGolden, ANewerDirectoryIsRefusedAndLeftAlone) {
  for (const std::set<uint32_t>& newer : {std::set{0u}, std::set{1u}, std::set{0u, 1u}}) {
    SCOPED_TRACE(absl::StrCat(newer.size(), " from ", *newer.begin()));
    LayOut();
    for (const uint32_t shard : newer) {
      std::string format = ReadFile(Shard(shard) / "FORMAT");
      format.replace(0, format.find('\n'), "larder-disk-tier 5");
      WriteFile(Shard(shard) / "FORMAT", format + "more 1\n");
    }
    const auto tier = Open();
    EXPECT_TRUE(absl::IsFailedPrecondition(tier.status())) << tier.status();
    EXPECT_THAT(std::string(tier.status().message()),
                AllOf(HasSubstr(disk()), HasSubstr("disk format 5"), HasSubstr("knows 4")));
    for (const uint32_t shard : newer)
      EXPECT_THAT(ReadFile(Shard(shard) / "FORMAT"), HasSubstr("larder-disk-tier 5"));
  }
}

// Returns a record header of an unknown version, with the right checksum.
std::string NextVersion(const RecordHeader& header) {
  std::string bytes = EncodeRecordHeader(header);
  const uint32_t version = kRecordVersionMax + 1;
  std::memcpy(bytes.data() + 4, &version, sizeof version);
  const uint64_t sum = HashBytes(Bytes(bytes).first(bytes.size() - sizeof(uint64_t)));
  std::memcpy(bytes.data() + bytes.size() - sizeof sum, &sum, sizeof sum);
  return bytes;
}

class UnknownRecord : public DiskGolden {
 protected:
  UnknownRecord() : block_(std::move(Blocks("second").front())) { LayOut(); }

  void ChangeInDataFile() const {
    const Place place = RecordsIn(disk()).at(block_.Record());
    std::fstream file(place.file, std::ios::binary | std::ios::in | std::ios::out);
    LARDER_CHECK(file.seekp(static_cast<std::streamoff>(place.offset))
                 << NextVersion(block_.header()));
  }
  // Changes the header in the catalog of the shard that has the block.
  void ChangeInCatalog() const {
    int changed = 0;
    for (const uint32_t shard : {0u, 1u}) {
      CatalogMemory memory(MiB(8));
      FaultPoints faults;
      const auto catalog = BlockCatalog::Open({.directory = Shard(shard) / "catalog",
                                               .disk_bytes_max = MiB(8),
                                               .memory = &memory,
                                               .faults = &faults,
                                               .warn = {}});
      LARDER_CHECK(catalog.ok());
      const std::string header = NextVersion(block_.header());
      std::vector<CatalogEntry> entries;
      LARDER_CHECK((*catalog)
                       ->ForEachPlace([&](const BlockKey& key, const CatalogPlace& place) {
                         if (key == block_.key())
                           entries.push_back({key, place, Bytes(header), block_.tokens()});
                         return true;
                       })
                       .ok());
      LARDER_CHECK((*catalog)->Commit(entries).ok());
      changed += static_cast<int>(entries.size());
    }
    LARDER_CHECK(changed == 1);
  }
  void ExpectTheOthers() const {
    for (const GoldenBlock& block : LiveBlocks()) {
      if (block.key() != block_.key()) {
        EXPECT_EQ(WrongWith(block), "") << NameOf(block.key());
      }
    }
    EXPECT_EQ(tier_->stats().shards_set_aside, 0u);
  }
  // Does what the daemon does about a block that it cannot read.
  void ExpectErasedForGood() {
    EraseOne(*tier_, AddressOf(block_));
    ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
    EXPECT_FALSE(entries_.contains(NameOf(block_.key())));
    ExpectTheOthers();
  }

  const GoldenBlock block_;
};

TEST_F(UnknownRecord, IsNotReturned) {
  ChangeInDataFile();
  ChangeInCatalog();
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  EXPECT_FALSE(DescribeOne(*tier_, AddressOf(block_)));
  const Got got =
      GetRange(*tier_, AddressOf(block_), block_.header(), {0, 2, 0, block_.payload().size()});
  EXPECT_EQ(got.status, DiskTier::GetStatus::kDamaged);
  ExpectTheOthers();
  ExpectErasedForGood();
}

TEST_F(UnknownRecord, InTheDataFileOnlyIsDamage) {
  ChangeInDataFile();
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  EXPECT_EQ(WrongWith(block_), "damaged");
  EXPECT_EQ(tier_->stats().damaged, 1u);
  ExpectTheOthers();
  ExpectErasedForGood();
}

TEST_F(UnknownRecord, InTheCatalogOnlyIsNotDescribed) {
  ChangeInCatalog();
  ASSERT_NO_FATAL_FAILURE(OpenAndRecover());
  EXPECT_EQ(WrongWith(block_), "has no description");
  ExpectTheOthers();
  ExpectErasedForGood();
}

// ---- Making the directory.

// Returns the file without the zeros behind its last byte.
std::string Cut(std::string bytes) {
  bytes.resize(RoundUp(bytes.find_last_not_of('\0') + 1, kPageBytes));
  return bytes;
}

// Returns true for files that the next daemon must find.  RocksDB does not need its OPTIONS files,
// which name the directory in which they were written.
bool Kept(const fs::path& path) {
  const std::string name = path.filename();
  return name != "LOCK" && !name.starts_with("LOG") && !name.starts_with("OPTIONS");
}

// Writes the directory of a new format where LARDER_TEST_GOLDEN_DIR says, or else a temporary one.
TEST_F(DiskGolden, WritesTheGoldenDirectory) {
  const char* const told = std::getenv("LARDER_TEST_GOLDEN_DIR");
  const fs::path golden = told != nullptr ? fs::path(told) : fs::path(directory_.path()) / "golden";
  ASSERT_FALSE(fs::exists(golden)) << golden << " exists: this test writes only a new directory";
  ASSERT_NO_FATAL_FAILURE(Write());
  for (const auto& entry : fs::recursive_directory_iterator(disk())) {
    if (!entry.is_regular_file() || !Kept(entry.path())) continue;
    const fs::path to = golden / fs::relative(entry.path(), disk());
    fs::create_directories(to.parent_path());
    const std::string bytes = ReadFile(entry.path());
    WriteFile(to, to.extension() == ".kv" ? Cut(bytes) : bytes);
  }
  EXPECT_TRUE(fs::exists(golden / "shard-00" / "FORMAT"));
}

}  // namespace
}  // namespace larder::testing
