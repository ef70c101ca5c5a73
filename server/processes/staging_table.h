// The staging segments of attached processes: memory that the daemon makes, and that it shares with
// one process which may not map slabs.  That process fills it with what it puts, and the daemon
// fills it with what the process reads.
//
// Does not copy and does not check content: the client may change the bytes at any moment.  A copy
// out of a segment is hashed where it arrived, never in the segment, and nothing that the daemon
// needs later is read back from one.
// No access of ours can fault: a segment is a memfd of the daemon's own making, sealed against
// shrinking before its descriptor leaves, and not of hugetlb pages.  (A client may punch holes; the
// next touch of one takes a page again, within what the segment was charged.)
// The pages are charged to the daemon as far as it touches them first, so what a process, the
// processes of a uid, and all of them may ask for is bounded.  A descriptor or a mapping that the
// client keeps does not keep them: what is dropped has its pages taken out of the file, and stays
// charged until that is done.  (What a client writes there afterwards are pages of its own.)
//
// Ownership: the mapping, shared with the copies under way: a dropped segment is freed when the
// last of them lets go.  The descriptor is the client's; the daemon keeps none.
// Thread-safety: all methods from any thread.  To free a segment takes a lock that its client may
// hold for as long as it likes (a write to it from memory that does not come): see Options.
// Lifecycle: Make -> Get ... -> Drop or DropProcess.
// Limits: Options.
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
  // Takes over a mapping.
  StagingSegment(std::span<std::byte> mapping, uid_t uid) : mapping_(mapping), uid_(uid) {}
  ~StagingSegment();  // unmaps
  StagingSegment(const StagingSegment&) = delete;
  StagingSegment& operator=(const StagingSegment&) = delete;

  // Memory that a hostile process reads and writes meanwhile.
  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_; }
  [[nodiscard]] uid_t uid() const { return uid_; }  // that it is charged to
  // Takes all pages out of the file, whoever has it open or mapped: it reads as zeros then.  False:
  // the kernel did not; errno says why.
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
    uint32_t uid_segments_max = 1024;  // with those that are not freed yet
    // What is dropped is freed on a thread of its user's own, soon; else where its last reference
    // goes, which may take long.
    bool frees_aside = false;
  };
  // A larger segment takes at most half of what is left of a limit: who halves its wish finds one
  // that fits, as long as so much is left.
  static constexpr ByteCount kSmallBytes = MiB(4);

  explicit StagingTable(const Options& options);
  ~StagingTable();
  StagingTable(const StagingTable&) = delete;
  StagingTable& operator=(const StagingTable&) = delete;

  struct Made {
    uint32_t id = 0;            // not 0, never reused in this process
    FileDescriptor descriptor;  // for the client: readable and writable
  };
  // InvalidArgument: not a multiple of 4,096, or none.  ResourceExhausted: a limit, which the
  // sentence names, more than half of what is left of one (and than kSmallBytes), or the host has
  // no memory.
  [[nodiscard]] absl::StatusOr<Made> Make(ProcessId process, uid_t uid, ByteCount bytes);
  // nullptr: this process has no such segment.
  [[nodiscard]] std::shared_ptr<const StagingSegment> Get(ProcessId process, uint32_t id) const;
  // False: no such segment.
  bool Drop(ProcessId process, uint32_t id);
  void DropProcess(ProcessId process);

  struct Counts {
    size_t processes = 0, segments = 0;
    ByteCount bytes;  // with those that were dropped and are not freed yet
  };
  [[nodiscard]] Counts counts() const;

 private:
  class Ledger;  // what the segments of all take until they are freed
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
  uint32_t last_id_ LARDER_GUARDED_BY(mu_) = 0;  // one count for all, so that none says more
};

}  // namespace larder
