// Named steps at which a test makes the daemon fail, stall or die.  All but one are steps of the
// disk tier.
//
// While no point is armed, At costs one load and a branch.  Fault points are not for production:
// larderd logs a warning if it starts with any point armed.
//
// Faults are armed by text, a list of POINT=ACTION[:TIME][/EVERY] separated by commas, as in
//   data.write=error/32,data.sync=sleep:500ms,put.committed=crash
// ACTION: error (EIO), full (ENOSPC), short (only half of the bytes are written or read; an error
// at points that neither write nor read), sleep:TIME (us, ms, s), crash (_exit(66), which like
// kill -9 runs no cleanup).  EVERY n (default 1): the action happens on average at one arrival in
// n.  Each point has a fixed sequence that decides at which arrivals, so that a run can be
// repeated.
//
// Ownership: server/main or a test makes a FaultPoints, which outlives the objects that use it.
// Thread-safety: all methods from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "storage/clock.h"

namespace larder {

enum class FaultPoint : uint8_t {
  kDataCreate,     // data.create    a data file is created
  kDataCreated,    // data.created   the data file exists, its directory is not yet synced
  kDataWrite,      // data.write     bytes of a record are written, at each system call
  kDataRead,       // data.read      bytes of a record are read, at each system call
  kDataSync,       // data.sync      records become durable
  kPutAllocated,   // put.allocated  extents are allocated, records are not yet written
  kPutWritten,     // put.written    records are written, not yet synced
  kPutSynced,      // put.synced     records are synced, not yet in the catalog
  kPutCommitted,   // put.committed  records are in the catalog, not yet reported
  kCatalogOpen,    // catalog.open   the catalog is opened
  kCatalogCommit,  // catalog.commit the catalog writes
  kCatalogErase,   // catalog.erase  names are erased
  kEraseWritten,   // erase.written  the names are erased, their extents are not yet free
  kCatalogRead,    // catalog.read   entries are looked up in the catalog
  kCatalogScan,    // catalog.scan   each entry is read when the daemon starts
  kCatalogFacts,   // catalog.facts  registrations and pins become durable, in each shard
  kShardSetAside,  // shard.set-aside  a damaged shard was renamed, its successor does not exist yet
  kSocketRights,   // socket.rights  the daemon starts; after any fault it acts as on a kernel
                   //                without SO_PASSRIGHTS
};
inline constexpr size_t kFaultPoints = 18;
[[nodiscard]] std::string_view ToString(FaultPoint point);

class FaultPoints {
 public:
  // Arms the points that `text` lists and disarms all others; an empty text disarms all.  Returns
  // InvalidArgument if part of the text is wrong; the message names that part and what is allowed,
  // and nothing has changed.
  [[nodiscard]] absl::Status Arm(std::string_view text);

  // The daemon calls this when it arrives at `point`.  Returns the failure that the caller must
  // pretend to have had, or kNone.  Sleeps and crashes happen inside this call.
  enum class Fault : uint8_t { kNone, kError, kFull, kShort };
  [[nodiscard]] Fault At(FaultPoint point) {
    if (!armed_.load(std::memory_order_relaxed)) [[likely]]
      return Fault::kNone;
    return Arrive(point);
  }
  // As At, for a caller that can only fail with a Status: a fault is Unavailable, or
  // ResourceExhausted for `full`, and the message names the point.
  [[nodiscard]] absl::Status StatusAt(FaultPoint point);

  [[nodiscard]] bool armed() const { return armed_.load(std::memory_order_relaxed); }
  // Arrivals at `point` while it was armed, and how many of them led to its action.
  [[nodiscard]] uint64_t arrivals(FaultPoint point) const;
  [[nodiscard]] uint64_t faults(FaultPoint point) const;

 private:
  enum class Action : uint8_t { kNone, kError, kFull, kShort, kSleep, kCrash };
  struct Plan {
    Action action = Action::kNone;
    uint32_t every = 1;
    Duration sleep{};
  };
  // Arm writes `plan` and Arrive reads it.  The Plan is packed into one integer, which can be
  // atomic.
  struct Point {
    std::atomic<uint64_t> plan{0};
    std::atomic<uint64_t> arrivals{0};
    std::atomic<uint64_t> faults{0};
  };
  [[nodiscard]] static absl::Status Parse(std::string_view part, FaultPoint* point, Plan* plan);
  [[nodiscard]] static uint64_t Pack(const Plan& plan);
  [[nodiscard]] static Plan Unpack(uint64_t bits);
  [[nodiscard]] Fault Arrive(FaultPoint point);

  std::atomic<bool> armed_{false};
  std::array<Point, kFaultPoints> points_;
};

}  // namespace larder
