// A segment of memory that the daemon made and shares with this process alone: where a staged Put
// lays its bytes, for the daemon to copy, and where the daemon lays those of a read by copies.
//
// Room is given out lowest address first, so that a small set of pages is used again and again and
// stays in the cache between our copy and the daemon's.
// A chunk may be used again only once the daemon has answered for it: until then it may still copy.
// One that was never answered stays taken.
//
// Ownership: owns the mapping, which lives as long as a StagingRoom of it.
// Thread-safety: all methods from any thread.
// Limits: a chunk is at most the segment; else Allocate answers ResourceExhausted.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/fork_guard.h"
#include "client/session/session_channel.h"
#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class StagingRoom;

class StagingArea : public std::enable_shared_from_this<StagingArea> {
 public:
  struct Chunk {
    uint64_t offset = 0;
    std::span<std::byte> bytes;
  };

  // Maps it.  Internal: it is not what the daemon says.  `lacking`: why it is smaller than wanted;
  // empty: it is not.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<StagingArea>> Create(
      StagingMemory memory, std::string lacking = {});
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  [[nodiscard]] ByteCount size() const { return ByteCount(memory_.size()); }
  // Named in Publish.
  [[nodiscard]] uint32_t id() const { return id_; }

  // At a multiple of 4,096.  Waits until there is room: DeadlineExceeded when there is none by
  // then.
  [[nodiscard]] absl::StatusOr<Chunk> Allocate(ByteCount bytes, TimePoint deadline)
      LARDER_EXCLUDES(mu_);
  void Free(const Chunk& chunk) LARDER_EXCLUDES(mu_);
  // The same, free again when it is dropped.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const StagingRoom>> AllocateRoom(ByteCount bytes,
                                                                                TimePoint deadline)
      LARDER_EXCLUDES(mu_);

 private:
  StagingArea(uint32_t id, std::span<std::byte> memory, std::string lacking);
  [[nodiscard]] bool TryAllocate(uint64_t bytes, uint64_t* offset) LARDER_REQUIRES(mu_);

  const uint32_t id_;
  const std::span<std::byte> memory_;
  const std::string lacking_;
  const ForkGuard fork_guard_;  // in a forked child the addresses may be another mapping's
  Mutex mu_;
  CondVar freed_;
  std::map<uint64_t, uint64_t> free_ LARDER_GUARDED_BY(mu_);  // offset -> bytes, never adjacent
};

// Ownership: keeps the area.  Thread-safety: const.
class StagingRoom {
 public:
  StagingRoom(std::shared_ptr<StagingArea> area, const StagingArea::Chunk& chunk)
      : area_(std::move(area)), chunk_(chunk) {}
  ~StagingRoom() { area_->Free(chunk_); }
  StagingRoom(const StagingRoom&) = delete;
  StagingRoom& operator=(const StagingRoom&) = delete;

  [[nodiscard]] uint64_t offset() const { return chunk_.offset; }
  [[nodiscard]] std::span<std::byte> bytes() const { return chunk_.bytes; }

 private:
  const std::shared_ptr<StagingArea> area_;
  const StagingArea::Chunk chunk_;
};

}  // namespace larder
