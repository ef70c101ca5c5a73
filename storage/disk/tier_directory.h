// The directory of a FileDiskTier: its lock, its FORMAT files, the identity of each shard, and the
// place where a damaged catalog is set aside.
//
// A directory has a random id.  Every FORMAT and every catalog contains this id and the number of
// its shard (docs/format.md), so that a catalog that was copied into the wrong directory or shard
// is recognized.  A directory that an older daemon created without an id gets one when it is
// opened.
// Ownership: by FileDiskTier.  Thread-safety: Open, ReadFormats and ChooseId from one thread,
// before all other methods; then all methods from any thread.  Lifecycle: Open (locks) ->
// ReadFormats -> ChooseId -> destroyed (unlocks).
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

  // The layout of the directory, which is chosen when it is created and never changes.
  struct Geometry {
    uint32_t shards = 0;
    ByteCount file_bytes;
  };

  // Creates the directory if it does not exist, and locks it.  Returns FailedPrecondition if
  // another process has locked it or it is not safe (MakePrivateDirectory).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TierDirectory>> Open(const std::string& path);
  ~TierDirectory();
  TierDirectory(const TierDirectory&) = delete;
  TierDirectory& operator=(const TierDirectory&) = delete;

  // Reads the geometry from the FORMAT files.  One readable FORMAT suffices, so a damaged one costs
  // nothing; if they differ, the majority is right.  Returns nullopt if no FORMAT can be read, as
  // in a new directory; FailedPrecondition if a newer version wrote one.
  [[nodiscard]] absl::StatusOr<std::optional<Geometry>> ReadFormats();
  // Chooses the id that most FORMATs and catalogs have; if none has an id, a random one.
  // `catalogs`: what BlockCatalog::Identity returned for each catalog that can be read.
  void ChooseId(std::span<const std::string> catalogs);
  // The identity that a shard's catalog must have.
  [[nodiscard]] std::string IdentityOf(uint32_t shard) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string ShardPath(uint32_t shard) const;
  [[nodiscard]] absl::Status MakeShard(uint32_t shard) const;
  // Writes the shard's FORMAT file, or only makes it durable if it has the right content already.
  [[nodiscard]] absl::Status WriteFormat(uint32_t shard, const Geometry& geometry) const;
  // Moves a shard's catalog to set-aside/, replacing a catalog that was set aside before.  Deletes
  // the catalog if it cannot be moved.
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
