// The staging segments of attached processes: memory that a client without the right to write slabs
// fills, and that the daemon copies from.
//
// Does not copy and does not check content: the client may change the bytes at any moment, so
// whoever copies hashes its own copy, never the segment.  What it does make sure of is that reading
// cannot kill the daemon: the memory is a memfd, sealed against shrinking, not of hugetlb pages (a
// fault in a hole of those is a SIGBUS when none is free), and of the size that the client claims.
//
// Ownership: the mapping, shared with the copies under way: a dropped segment is unmapped when the
// last of them lets go.  The descriptor is closed once mapped.
// Thread-safety: all methods from any thread.
// Lifecycle: Add -> Get ... -> Drop or DropProcess.
// Limits: Options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/file_descriptor.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class StagingSegment {
 public:
  // Takes over a mapping.
  explicit StagingSegment(std::span<const std::byte> mapping) : mapping_(mapping) {}
  ~StagingSegment();
  StagingSegment(const StagingSegment&) = delete;
  StagingSegment& operator=(const StagingSegment&) = delete;

  // Memory that a hostile process writes meanwhile.
  [[nodiscard]] std::span<const std::byte> bytes() const { return mapping_; }

 private:
  const std::span<const std::byte> mapping_;
};

class StagingTable {
 public:
  struct Options {
    ByteCount process_bytes_max = GiB(1);
    uint32_t process_segments_max = 16;
    ByteCount total_bytes_max = GiB(16);
  };
  explicit StagingTable(const Options& options) : options_(options) {}
  StagingTable(const StagingTable&) = delete;
  StagingTable& operator=(const StagingTable&) = delete;

  // The id of the new segment, not 0, never reused in this process.  InvalidArgument: not such a
  // memfd, or not `claimed` bytes.  ResourceExhausted: a limit.
  [[nodiscard]] absl::StatusOr<uint32_t> Add(ProcessId process, FileDescriptor memfd,
                                             ByteCount claimed);
  // nullptr: this process has no such segment.
  [[nodiscard]] std::shared_ptr<const StagingSegment> Get(ProcessId process, uint32_t id) const;
  // False: no such segment.
  bool Drop(ProcessId process, uint32_t id);
  void DropProcess(ProcessId process);

  struct Counts {
    size_t processes = 0, segments = 0;
    ByteCount bytes;  // without those that only a copy under way holds
  };
  [[nodiscard]] Counts counts() const;

 private:
  struct Process {
    absl::flat_hash_map<uint32_t, std::shared_ptr<const StagingSegment>> segments;
    ByteCount bytes;
  };
  [[nodiscard]] absl::Status CheckRoom(ProcessId process, ByteCount bytes) const
      LARDER_REQUIRES(mu_);

  const Options options_;
  mutable Mutex mu_;
  absl::flat_hash_map<ProcessId, Process> processes_ LARDER_GUARDED_BY(mu_);
  ByteCount total_ LARDER_GUARDED_BY(mu_);
  uint32_t last_id_ LARDER_GUARDED_BY(mu_) = 0;  // one count for all, so that none says more
};

}  // namespace larder
