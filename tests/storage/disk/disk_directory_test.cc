// The directory of a disk tier: its names survive a loss of power, and other users can neither read
// nor write it.
//
// This program observes which names are made, renamed and synced by defining its own functions
// under the names of the C library's, which everything linked here calls.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/disk/file_disk_tier.h"
#include "storage/mutex.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Directories in which a name changed and that were not synced after that.  The sync must begin
// after the change, because another thread may change a name during a sync.
class UnsyncedDirectories {
 public:
  void Changed(const std::string& path) {
    MutexLock lock(mu_);
    if (fs::path(path).string().find("/catalog/") != std::string::npos) return;  // RocksDB's
    changes_.push_back({fs::path(path).parent_path(), ++last_});
  }
  // A sync begins.  Returns the number of the last change that it covers.
  [[nodiscard]] uint64_t Begin() {
    MutexLock lock(mu_);
    return last_;
  }
  void Synced(int fd, uint64_t began) {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t bytes = readlink(link.c_str(), path.data(), path.size());
    if (bytes <= 0) return;
    const fs::path synced(std::string(path.data(), path.data() + bytes));
    MutexLock lock(mu_);
    std::erase_if(changes_, [&](const Change& change) {
      return change.directory == synced && change.number <= began;
    });
  }
  std::vector<fs::path> Take() {
    MutexLock lock(mu_);
    std::vector<fs::path> directories;
    for (const Change& change : std::exchange(changes_, {}))
      directories.push_back(change.directory);
    return directories;
  }

 private:
  struct Change {
    fs::path directory;
    uint64_t number = 0;
  };
  Mutex mu_;
  uint64_t last_ LARDER_GUARDED_BY(mu_) = 0;
  std::vector<Change> changes_ LARDER_GUARDED_BY(mu_);
};
UnsyncedDirectories& Unsynced() {
  static auto* const unsynced = new UnsyncedDirectories;  // never destroyed
  return *unsynced;
}

}  // namespace
}  // namespace larder::testing

extern "C" {
int fsync(int fd) {
  const uint64_t began = larder::testing::Unsynced().Begin();
  const auto result = static_cast<int>(syscall(SYS_fsync, fd));
  if (result == 0) larder::testing::Unsynced().Synced(fd, began);
  return result;
}
int mkdir(const char* path, mode_t mode) noexcept {
  const auto result = static_cast<int>(syscall(SYS_mkdir, path, mode));
  if (result == 0) larder::testing::Unsynced().Changed(path);
  return result;
}
int rename(const char* from, const char* to) noexcept {
  const auto result = static_cast<int>(syscall(SYS_rename, from, to));
  if (result == 0) larder::testing::Unsynced().Changed(to);
  if (result == 0) larder::testing::Unsynced().Changed(from);
  return result;
}
}

namespace larder::testing {
namespace {

class DiskDirectory : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<FileDiskTier>> Open() const {
    return FileDiskTier::Open({.directory = disk(),
                               .limit = MiB(160),
                               .faults = nullptr,
                               .faulty_shard = std::nullopt,
                               .warn = {}});
  }
  void MakeOne() {
    auto tier = Open();
    ASSERT_TRUE(tier.ok()) << tier.status();
    RecoverAll(**tier);
    ASSERT_EQ(PutOne(**tier, DiskBlock(1, 2, 50'000)).status, DiskTier::PutStatus::kOk);
  }
  void ExpectRefused(const std::string& what, const std::string& advice) const {
    const auto tier = Open();
    EXPECT_TRUE(absl::IsFailedPrecondition(tier.status())) << tier.status();
    EXPECT_THAT(std::string(tier.status().message()), AllOf(HasSubstr(what), HasSubstr(advice)));
  }
  [[nodiscard]] fs::path disk() const { return fs::path(directory_.path()) / "disk"; }
  [[nodiscard]] fs::path shard() const { return disk() / "shard-00"; }
  [[nodiscard]] static unsigned ModeOf(const fs::path& path) {
    struct stat found {};
    EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 07777;
  }

  TemporaryDirectory directory_;
};

// ---- Names are durable.

TEST_F(DiskDirectory, ASyncCoversOnlyChangesBeforeItBegan) {
  const int fd = open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  UnsyncedDirectories unsynced;
  unsynced.Changed(directory_.path() + "/before");
  const uint64_t began = unsynced.Begin();
  unsynced.Changed(directory_.path() + "/meanwhile");
  unsynced.Synced(fd, began);
  EXPECT_THAT(unsynced.Take(), ::testing::ElementsAre(fs::path(directory_.path())));
  unsynced.Changed(directory_.path() + "/before");
  unsynced.Synced(fd, unsynced.Begin());
  EXPECT_THAT(unsynced.Take(), ::testing::IsEmpty());
  close(fd);
}

TEST_F(DiskDirectory, EachNewNameIsSyncedInItsDirectory) {
  (void)Unsynced().Take();
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  EXPECT_THAT(Unsynced().Take(), ::testing::IsEmpty());
}

// Otherwise a loss of power could remove the names of the files that the next process writes.
TEST_F(DiskDirectory, TheNextProcessSyncsNamesThatItsPredecessorDidNot) {
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  (void)Unsynced().Take();
  for (const fs::path& made : {disk(), shard(), shard() / "catalog", shard() / "FORMAT"})
    Unsynced().Changed(made);
  const auto tier = Open();
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_THAT(Unsynced().Take(), ::testing::IsEmpty());
}

TEST_F(DiskDirectory, SettingAsideSyncsBothDirectories) {
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  fs::remove(shard() / "catalog" / "CURRENT");
  (void)Unsynced().Take();
  {
    const auto tier = Open();
    ASSERT_TRUE(tier.ok()) << tier.status();
    EXPECT_EQ((*tier)->stats().shards_set_aside, 1u);
  }
  EXPECT_THAT(Unsynced().Take(), ::testing::IsEmpty());
  EXPECT_TRUE(fs::exists(disk() / "set-aside" / "catalog"));
}

// ---- Other users can neither read nor write the directory.

TEST_F(DiskDirectory, FilesAndFoldersArePrivateToTheirOwner) {
  const mode_t before = umask(0);
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  fs::remove(shard() / "catalog" / "CURRENT");
  EXPECT_TRUE(Open().ok());
  umask(before);
  for (const fs::path& path : {disk(), shard(), shard() / "catalog", disk() / "set-aside"})
    EXPECT_EQ(ModeOf(path), 0700u) << path;
  for (const char* file : {"LOCK", "shard-00/FORMAT"})
    EXPECT_EQ(ModeOf(disk() / file), 0600u) << file;
  for (const auto& entry : fs::recursive_directory_iterator(disk())) {
    if (entry.path().extension() == ".kv") {
      EXPECT_EQ(ModeOf(entry.path()), 0600u) << entry.path();
    }
  }
}

TEST_F(DiskDirectory, AReadableDirectoryIsMadePrivate) {
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  for (const fs::path& path : {disk(), shard(), shard() / "catalog"})
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  ASSERT_EQ(chmod((disk() / "LOCK").c_str(), 0644), 0);
  EXPECT_TRUE(Open().ok());
  for (const fs::path& path : {disk(), shard(), shard() / "catalog"})
    EXPECT_EQ(ModeOf(path), 0700u) << path;
  EXPECT_EQ(ModeOf(disk() / "LOCK"), 0600u);
}

TEST_F(DiskDirectory, ADirectoryThatOthersCanWriteIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  for (const fs::path& path : {disk(), shard(), shard() / "catalog"}) {
    for (const mode_t mode : {0770u, 0707u, 01777u}) {
      ASSERT_EQ(chmod(path.c_str(), mode), 0);
      ExpectRefused(path, "chmod -R go-w");
    }
    ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  }
  EXPECT_TRUE(Open().ok());
}

TEST_F(DiskDirectory, FilesOfAnotherUserAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner of files";
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  for (const fs::path& path : {disk(), shard(), disk() / "LOCK", shard() / "00000000.kv"}) {
    if (!fs::exists(path)) continue;  // a shard without a block yet
    ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
    ExpectRefused(path, "chown");
    ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
  }
  EXPECT_TRUE(Open().ok());
}

TEST_F(DiskDirectory, NoLinkInsideIsFollowed) {
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  const fs::path elsewhere = fs::path(directory_.path()) / "elsewhere";
  for (const fs::path& path :
       {disk() / "LOCK", shard(), shard() / "catalog", shard() / "00000000.kv"}) {
    SCOPED_TRACE(path);
    const bool there = fs::exists(path);
    if (there) fs::rename(path, elsewhere);
    if (!there) std::ofstream(elsewhere) << "what a link leads to";
    fs::create_symlink(elsewhere, path);
    if (there || path.extension() != ".kv") ExpectRefused(path, "symbolic link");
    fs::remove(path);
    if (there) fs::rename(elsewhere, path);
    if (!there) fs::remove(elsewhere);
  }
  EXPECT_TRUE(Open().ok());
  // The operator may place the directory itself behind a link.
  fs::rename(disk(), elsewhere);
  fs::create_symlink(elsewhere, disk());
  EXPECT_TRUE(Open().ok());
}

// A FORMAT that is a link is not read, and is replaced by a file.
TEST_F(DiskDirectory, AFormatThatIsALinkIsReplaced) {
  ASSERT_NO_FATAL_FAILURE(MakeOne());
  const fs::path victim = fs::path(directory_.path()) / "victim";
  std::ofstream(victim) << "larder-disk-tier 9\n";
  fs::remove(shard() / "FORMAT");
  fs::create_symlink(victim, shard() / "FORMAT");
  const auto tier = Open();
  EXPECT_TRUE(tier.ok()) << tier.status();
  EXPECT_FALSE(fs::is_symlink(shard() / "FORMAT"));
  EXPECT_EQ(fs::file_size(victim), 19u);
}

}  // namespace
}  // namespace larder::testing
