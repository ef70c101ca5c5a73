// The directory of a FileDiskTier: its lock, what its shards' FORMAT files say, whose each shard
// is, and where a damaged catalog goes.
//
// A directory has a random id, which every FORMAT and every catalog says with the number of its
// shard (docs/format.md): one that says something else was put there by mistake.  Directories from
// before ids get one when they are opened.
// Ownership: by FileDiskTier.  Thread-safety: Open, ReadFormats and ChooseId from one thread,
// before all others; then from any.  Lifecycle: made -> ReadFormats -> ChooseId -> destroyed
// (unlocks).
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

  // What a directory is made with once, and keeps.
  struct Geometry {
    uint32_t shards = 0;
    ByteCount file_bytes;
  };

  // Makes it where it is not there, and locks it.  FailedPrecondition: another process has it, or
  // it is not safe (MakePrivateDirectory).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TierDirectory>> Open(const std::string& path);
  ~TierDirectory();
  TierDirectory(const TierDirectory&) = delete;
  TierDirectory& operator=(const TierDirectory&) = delete;

  // Any one FORMAT suffices: a damaged one costs nothing.  Where they differ most of them are
  // right.  nullopt: there is none yet.
  // FailedPrecondition: a newer version wrote it.
  [[nodiscard]] absl::StatusOr<std::optional<Geometry>> ReadFormats();
  // The id that most FORMATs and most of these words of catalogs (IdentityOf) have; of no votes, a
  // random one.
  void ChooseId(std::span<const std::string> catalogs);
  // What a shard's catalog must say.
  [[nodiscard]] std::string IdentityOf(uint32_t shard) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string ShardPath(uint32_t shard) const;
  [[nodiscard]] absl::Status MakeShard(uint32_t shard) const;
  // Where it says so already it is made durable.
  [[nodiscard]] absl::Status WriteFormat(uint32_t shard, const Geometry& geometry) const;
  // A shard's catalog goes aside, in place of the last that did.
  [[nodiscard]] absl::Status SetAside(uint32_t shard) const;
  [[nodiscard]] uint64_t SetAsideBytes() const;
  void RemoveSetAside() const;

 private:
  explicit TierDirectory(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] absl::Status Lock();
  [[nodiscard]] std::string SetAsidePath() const { return path_ + "/set-aside"; }

  const std::string path_;
  int lock_fd_ = -1;
  std::string id_;                  // 32 hexadecimal digits, since ChooseId
  std::vector<std::string> votes_;  // of FORMATs
};

}  // namespace larder
