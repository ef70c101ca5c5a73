// A segment of this process's memory that the daemon copies from: where a staged Put lays its
// bytes.
//
// Room is given out lowest address first, so that a small set of pages is used again and again and
// stays in the cache between our copy and the daemon's.
// A chunk may be used again only once the daemon has answered for it: until then it may still copy.
// One that was never answered stays taken.
//
// Ownership: owns memfd and mapping.  Thread-safety: all methods from any thread.
// Limits: a chunk is at most the segment; else Allocate answers ResourceExhausted.
#pragma once

#include <map>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/file_descriptor.h"
#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class StagingArea {
 public:
  struct Chunk {
    uint64_t offset = 0;
    std::span<std::byte> bytes;
  };

  // Sealed against shrinking and growing, as the sideband wants it.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<StagingArea>> Create(ByteCount bytes);
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_.get(); }
  [[nodiscard]] ByteCount size() const { return ByteCount(memory_.size()); }
  // Named in Publish; set once, before the first Allocate.
  [[nodiscard]] uint32_t id() const { return id_; }
  void set_id(uint32_t id) { id_ = id; }

  // At a multiple of 4,096.  Waits until there is room: DeadlineExceeded when there is none by
  // then.
  [[nodiscard]] absl::StatusOr<Chunk> Allocate(ByteCount bytes, TimePoint deadline)
      LARDER_EXCLUDES(mu_);
  void Free(const Chunk& chunk) LARDER_EXCLUDES(mu_);

 private:
  StagingArea(FileDescriptor descriptor, std::span<std::byte> memory);
  [[nodiscard]] bool TryAllocate(uint64_t bytes, uint64_t* offset) LARDER_REQUIRES(mu_);

  const FileDescriptor descriptor_;
  const std::span<std::byte> memory_;
  uint32_t id_ = 0;
  Mutex mu_;
  CondVar freed_;
  std::map<uint64_t, uint64_t> free_ LARDER_GUARDED_BY(mu_);  // offset -> bytes, never adjacent
};

}  // namespace larder
