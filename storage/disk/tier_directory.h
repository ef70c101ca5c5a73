// The directory of a FileDiskTier: its lock; its FORMAT files (the number of shards and the size of
// data files); the identity of each shard; and the place where a damaged catalog is set aside.
//
// A directory has a random id.  FORMAT and the catalog of each shard contain this id and the number
// of the shard (docs/format.md), so that a catalog that was copied into the wrong directory or
// shard is recognized.  A directory that an older daemon created without an id gets one when it is
// opened.
// Ownership: by FileDiskTier.  Thread-safety: Open and ReadFormats first; ChooseId before
// IdentityOf and WriteFormat, and while no other thread calls either of them; SetAside and
// RemoveSetAside on one thread at a time; the other methods from any thread, but for one shard from
// one thread at a time.
// Lifecycle: Open (locks) -> ReadFormats -> ChooseId -> destroyed (unlocks).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/types.h"

namespace larder {

class TierDirectory {
 public:
  static constexpr uint32_t kShardsMax = 8;
  static constexpr ByteCount kFileBytesMin = MiB(16);
  static constexpr ByteCount kFileBytesMax = MiB(256);

  // How the directory is divided, chosen when it is created and then read from FORMAT.
  struct Geometry {
    uint32_t shards = 0;
    ByteCount file_bytes;
  };

  // Creates the directory if it does not exist, and locks it.  Returns FailedPrecondition if an
  // operator must decide, for example because another process has locked it; or another error.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TierDirectory>> Open(const std::string& path);
  ~TierDirectory();
  TierDirectory(const TierDirectory&) = delete;
  TierDirectory& operator=(const TierDirectory&) = delete;

  // Reads the geometry from the FORMAT files of all shards.  One valid FORMAT suffices; if several
  // differ, the most frequent geometry is returned.  Returns nullopt if no FORMAT is valid, as in a
  // new directory; FailedPrecondition if a newer version wrote one of them.
  [[nodiscard]] absl::StatusOr<std::optional<Geometry>> ReadFormats();
  // Chooses the most frequent id of FORMATs and catalogs; if none has an id, a random one.
  // `catalogs`: what BlockCatalog::Identity returned for each catalog that can be read.
  // REQUIRES: ReadFormats was called, which has read the ids of the FORMATs.
  void ChooseId(std::span<const std::string> catalogs);
  // Returns the identity that a shard's catalog must have: the id of the directory and the number
  // of the shard.  REQUIRES: ChooseId was called.
  [[nodiscard]] std::string IdentityOf(uint32_t shard) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string ShardPath(uint32_t shard) const;
  [[nodiscard]] absl::Status MakeShard(uint32_t shard) const;
  // Writes the shard's FORMAT file, or only makes it durable if it has the right content already.
  // REQUIRES: ChooseId was called.
  [[nodiscard]] absl::Status WriteFormat(uint32_t shard, const Geometry& geometry) const;
  // Moves a shard's catalog to set-aside/, replacing a catalog that was set aside before.  Deletes
  // the catalog if it cannot be moved.  Returns an error if that fails too, or if the shard's
  // directory cannot be synced.
  // REQUIRES: the catalog is closed.
  [[nodiscard]] absl::Status SetAside(uint32_t shard) const;
  [[nodiscard]] uint64_t SetAsideBytes() const;
  void RemoveSetAside() const;

 private:
  explicit TierDirectory(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] absl::Status Lock();
  [[nodiscard]] std::string SetAsidePath() const { return path_ + "/set-aside"; }

  const std::string path_;
  int lock_fd_ = -1;
  std::string id_;                  // 32 hexadecimal digits; set by ChooseId
  std::vector<std::string> votes_;  // the ids in FORMAT files
};

}  // namespace larder
