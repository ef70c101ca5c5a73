#include "storage/disk/tier_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/check.h"
#include "storage/disk/directory.h"
#include "storage/disk/private_files.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

// The version of the disk format.  In version 1 records do not name their content; in version 2 no
// record is encoded; in version 3 no record names its writer.  A daemon that knows only version 3
// would regard a record that names its writer as damaged.
constexpr uint32_t kVersion = 4;
constexpr const char* kFormatFile = "/FORMAT";
constexpr size_t kIdDigits = 32;

bool IsId(std::string_view text) {
  return text.size() == kIdDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::string RandomId() {
  std::string id;
  for (size_t i = 0; i < kIdDigits / 16; ++i) {
    uint64_t word = 0;
    LARDER_CHECK(getrandom(&word, sizeof word, 0) == sizeof word);
    absl::StrAppendFormat(&id, "%016x", word);
  }
  return id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TierDirectory>> TierDirectory::Open(const std::string& path) {
  auto directory = absl::WrapUnique(new TierDirectory(path));
  // The operator chooses where the directory lies, so it may be a symbolic link.
  LARDER_RETURN_IF_ERROR(MakePrivateDirectory(path, Links::kFollowed));
  LARDER_RETURN_IF_ERROR(directory->Lock());
  return directory;
}

TierDirectory::~TierDirectory() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::Status TierDirectory::Lock() {
  LARDER_ASSIGN_OR_RETURN(lock_fd_, OpenPrivateFile(path_ + "/LOCK", O_RDWR | O_CREAT));
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path_, " is used by another process; give each daemon a directory of its own"));
}

std::string TierDirectory::ShardPath(uint32_t shard) const {
  return absl::StrCat(path_, "/shard-", absl::StrFormat("%02d", shard));
}

// All FORMATs are read: a newer daemon that died while it converted the directory may have left
// some of them as they were.
absl::StatusOr<std::optional<TierDirectory::Geometry>> TierDirectory::ReadFormats() {
  std::map<std::pair<uint32_t, uint64_t>, size_t> votes;
  for (uint32_t number = 0; number < kShardsMax; ++number) {
    std::istringstream file(ReadSmallFile(ShardPath(number) + kFormatFile));
    std::string words[5];
    uint32_t version = 0, shards = 0;
    uint64_t file_bytes = 0;
    if (!(file >> words[0] >> version)) continue;
    if (words[0] == "larder-disk-tier" && version > kVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          path_, " was written by a newer larderd (disk format ", version, "; this larderd knows ",
          kVersion, "); use that version, or another directory"));
    }
    if (!(file >> words[1] >> shards >> words[2] >> file_bytes) || words[1] != "shards" ||
        words[2] != "file_bytes" || shards == 0 || shards > kShardsMax ||
        file_bytes < kFileBytesMin.value() || file_bytes > kFileBytesMax.value() ||
        !std::has_single_bit(file_bytes)) {
      continue;
    }
    if (file >> words[3] >> words[4] && words[3] == "directory" && IsId(words[4]))
      votes_.push_back(words[4]);
    ++votes[{shards, file_bytes}];
  }
  if (votes.empty()) return std::nullopt;
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& each) { return each.second; });
  return Geometry{.shards = most->first.first, .file_bytes = ByteCount(most->first.second)};
}

void TierDirectory::ChooseId(std::span<const std::string> catalogs) {
  std::map<std::string, size_t> votes;
  for (const std::string& id : votes_) votes[id] += 2;
  for (const std::string& identity : catalogs) {
    const std::string id = identity.substr(0, kIdDigits);
    if (IsId(id)) votes[id] += 2;
  }
  if (!votes_.empty()) ++votes[votes_.front()];  // breaks a tie
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& each) { return each.second; });
  id_ = most == votes.end() ? RandomId() : most->first;
}

std::string TierDirectory::IdentityOf(uint32_t shard) const {
  LARDER_CHECK(!id_.empty());
  return absl::StrCat(id_, absl::StrFormat("/%02d", shard));
}

absl::Status TierDirectory::MakeShard(uint32_t shard) const {
  LARDER_RETURN_IF_ERROR(MakePrivateDirectory(ShardPath(shard)));
  return MakePrivateDirectory(ShardPath(shard) + "/catalog");
}

absl::Status TierDirectory::WriteFormat(uint32_t shard, const Geometry& geometry) const {
  const std::string format =
      absl::StrCat("larder-disk-tier ", kVersion, "\nshards ", geometry.shards, "\nfile_bytes ",
                   geometry.file_bytes.value(), "\ndirectory ", id_, "\nshard ", shard, "\n");
  const std::string path = ShardPath(shard) + kFormatFile;
  if (ReadSmallFile(path) != format) return WriteDurably(path, format);
  // The process that wrote FORMAT may have been killed before it synced the directory.
  return SyncDirectory(ShardPath(shard));
}

absl::Status TierDirectory::SetAside(uint32_t shard) const {
  const std::string place = SetAsidePath();
  const std::string catalog = ShardPath(shard) + "/catalog";
  std::error_code error;
  fs::remove_all(place, error);
  absl::Status status = MakePrivateDirectory(place);
  if (status.ok()) {
    fs::rename(catalog, place + "/catalog", error);
    if (error) status = FileError(error.value(), "cannot rename", catalog);
  }
  if (status.ok()) status = SyncDirectory(place);
  if (!status.ok()) {
    fs::remove_all(catalog, error);
    if (error) return FileError(error.value(), "cannot remove", catalog);
  }
  return SyncDirectory(ShardPath(shard));
}

uint64_t TierDirectory::SetAsideBytes() const {
  uint64_t bytes = 0;
  (void)ForEachIn<fs::recursive_directory_iterator>(
      SetAsidePath(), [&](const fs::directory_entry& entry) {
        std::error_code error;
        const uint64_t size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
        if (!error) bytes += size;
      });
  return bytes;
}

void TierDirectory::RemoveSetAside() const {
  std::error_code error;
  fs::remove_all(SetAsidePath(), error);
}

}  // namespace larder
