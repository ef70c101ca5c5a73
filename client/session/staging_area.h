// The staging segment of a session: shared memory that the daemon made for this process alone.  A
// staged Put writes its bytes here for the daemon to copy, and the daemon writes the bytes of a
// read by copies here.
//
// Memory is allocated at the lowest address where it fits, so that a small set of pages is reused.
// Once a request has named an allocated part (StagingArea::Chunk), the daemon may copy from or into
// it until it has answered, so the part is freed only after that, or when the session has ended.
//
// Ownership: Owns the mapping, which lives at least as long as any StagingRoom of it.
// Thread-safety: All methods may be called from any thread.
// Limits: A chunk is at most the whole segment.
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

  // Maps the segment.  Returns Internal if its size is not what the daemon announced, or is 0.
  // `lacking`, if it is not empty, says why the segment is smaller than requested.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<StagingArea>> Create(
      StagingMemory memory, std::string lacking = {});
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  [[nodiscard]] ByteCount size() const { return ByteCount(memory_.size()); }
  // The number by which Publish and Acquire name the segment.
  [[nodiscard]] uint32_t id() const { return id_; }

  // Allocates `bytes` bytes, at a multiple of 4,096.  Waits until so many contiguous bytes are
  // free; returns DeadlineExceeded if they are not free by the deadline (at once if it has passed),
  // and ResourceExhausted if `bytes` is 0 or the whole segment is smaller.
  [[nodiscard]] absl::StatusOr<Chunk> Allocate(ByteCount bytes, TimePoint deadline)
      LARDER_EXCLUDES(mu_);
  void Free(const Chunk& chunk) LARDER_EXCLUDES(mu_);
  // Allocates as Allocate does; the memory is freed when the returned object is destroyed.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const StagingRoom>> AllocateRoom(ByteCount bytes,
                                                                                TimePoint deadline)
      LARDER_EXCLUDES(mu_);

 private:
  StagingArea(uint32_t id, std::span<std::byte> memory, std::string lacking);
  [[nodiscard]] bool TryAllocate(uint64_t bytes, uint64_t* offset) LARDER_REQUIRES(mu_);

  const uint32_t id_;
  const std::span<std::byte> memory_;
  const std::string lacking_;
  const ForkGuard fork_guard_;  // in a forked child the addresses may belong to another mapping
  Mutex mu_;
  CondVar freed_;
  std::map<uint64_t, uint64_t> free_ LARDER_GUARDED_BY(mu_);  // offset -> bytes, never adjacent
};

// An allocated part of a staging segment, which is freed when this object is destroyed.
// Ownership: Keeps the area alive.
// Thread-safety: Const.
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
