// The staging segments of attached processes: memory that the daemon creates and shares with one
// process.  The process may write into a segment the blocks that it publishes, and the daemon may
// copy into a segment the blocks that the process reads.
//
// The table does not copy and does not check content: the client may change the bytes at any
// moment.  So a copy out of a segment is hashed at its destination, never in the segment, and the
// daemon reads nothing back from a segment that it needs later.
// A client cannot shrink a segment, which would make an access by the daemon raise SIGBUS: a
// segment is a memfd that the daemon created and sealed before the client got its descriptor, and
// it does not use hugetlb pages.  (A client may punch holes; the next access to a hole allocates a
// page again, within what was charged for the segment.)
// The kernel charges pages to the daemon if the daemon touches them first, so there are limits on
// what a process, the processes of a uid, and all processes may request.  A descriptor or a mapping
// that the client keeps does not keep the pages: after a segment is dropped, its pages are removed
// from the file, and the segment stays charged until they are removed.
//
// Ownership: the table shares each mapping with the copies under way: a dropped segment is not
// freed before the last of these copies releases it.  The client owns the descriptor; the daemon
// keeps none.
// Thread-safety: all methods may be called from any thread.  Freeing a segment takes a kernel lock
// that its client may hold for as long as it likes (by a write to the file from memory whose pages
// do not arrive), which is why Options::frees_aside exists.
// Locks: mu_ is acquired before the lock of the Ledger.  Neither is held while a dropped segment is
// freed.
// Lifecycle: Make -> Get ... -> Drop or DropProcess.
// Limits: see Options.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class StagingSegment {
 public:
  // Takes ownership of a mapping.
  StagingSegment(std::span<std::byte> mapping, uid_t uid) : mapping_(mapping), uid_(uid) {}
  ~StagingSegment();  // unmaps
  StagingSegment(const StagingSegment&) = delete;
  StagingSegment& operator=(const StagingSegment&) = delete;

  // Memory that a hostile process may read and write at the same time.
  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_; }
  [[nodiscard]] uid_t uid() const { return uid_; }  // the uid that is charged
  // Removes all pages from the file, even if a process has the file open or mapped; the file then
  // reads as zeros.  Returns false, with the reason in errno, if the kernel did not remove them.
  [[nodiscard]] bool RemovePages() const;

 private:
  const std::span<std::byte> mapping_;
  const uid_t uid_;
};

class StagingTable {
 public:
  struct Options {
    ByteCount process_bytes_max = MiB(256);
    uint32_t process_segments_max = 16;
    ByteCount uid_bytes_max = MiB(512);
    ByteCount total_bytes_max = GiB(1);
    uint32_t uid_segments_max = 1024;  // including dropped ones that are not freed yet
    // If true, a separate thread for each user frees the user's dropped segments.  Otherwise the
    // thread that releases the last reference frees the segment, which may take long.
    bool frees_aside = false;
  };
  // A segment larger than kSmallBytes may take at most half of what is left of each limit of bytes.
  // So a client that is refused can halve its request again and again, and usually finds a segment
  // that fits.
  static constexpr ByteCount kSmallBytes = MiB(4);

  explicit StagingTable(const Options& options);
  ~StagingTable();
  StagingTable(const StagingTable&) = delete;
  StagingTable& operator=(const StagingTable&) = delete;

  struct Made {
    uint32_t id = 0;            // not 0; the daemon never reuses it
    FileDescriptor descriptor;  // for the client: readable and writable
  };
  // Creates a segment of a process.  Returns InvalidArgument if `bytes` is 0 or not a multiple of
  // 4,096.  Returns ResourceExhausted if the segment does not fit into a limit, which the message
  // names, or if the host has no memory or descriptor; or another error.
  [[nodiscard]] absl::StatusOr<Made> Make(ProcessId process, uid_t uid, ByteCount bytes);
  // Returns nullptr if this process has no such segment.
  [[nodiscard]] std::shared_ptr<const StagingSegment> Get(ProcessId process, uint32_t id) const;
  // Drops a segment.  Returns false if this process has no such segment.
  bool Drop(ProcessId process, uint32_t id);
  void DropProcess(ProcessId process);

  struct Counts {
    size_t processes = 0, segments = 0;
    ByteCount bytes;  // including dropped segments that are not freed yet
  };
  [[nodiscard]] Counts counts() const;

 private:
  class Ledger;  // charges segments to their users until they are freed
  struct Process {
    absl::flat_hash_map<uint32_t, std::shared_ptr<const StagingSegment>> segments;
    ByteCount bytes;
  };
  [[nodiscard]] absl::Status CheckProcess(ProcessId process, ByteCount bytes) const
      LARDER_REQUIRES(mu_);

  const Options options_;
  const std::shared_ptr<Ledger> ledger_;  // shared with the segments
  mutable Mutex mu_;
  absl::flat_hash_map<ProcessId, Process> processes_ LARDER_GUARDED_BY(mu_);
  // One counter for all processes, so that an id is never reused and names one segment only.
  uint32_t last_id_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder
