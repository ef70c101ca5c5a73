// Named steps at which a test makes the daemon fail, stall or die, most of them in the disk tier.
//
// A point is armed while it has an action.  While no point is armed, At costs one load and a
// branch.  Fault points are not for production: larderd logs a warning if it starts with any point
// armed.
//
// Faults are armed by text, a list of POINT=ACTION[/EVERY] separated by commas, as in
//   data.write=error/32,data.sync=sleep:500ms,put.committed=crash
// ACTION is one of (FaultPoint says where an action does something else):
//   error       the step fails, as if with EIO
//   full        the step fails as on a full disk; many steps treat this as `error`
//   short       at data.read and data.write, a system call for more than a page transfers only a
//               part, and the caller goes on with the rest; at other points the same as `error`
//   sleep:TIME  the step is delayed (TIME as in 500ms or 2s, up to 10 minutes)
//   crash       the process ends by _exit(66), which like kill -9 runs no cleanup
// With EVERY n (1 to 16,777,215; default 1), the action happens on average at one in n of the
// daemon's arrivals at the point.  A sequence for each point, the same in every run, decides which.
//
// Ownership: a FaultPoints outlives the objects that use it.
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
  kDataSync,       // data.sync      a data file is synced
  kPutAllocated,   // put.allocated  extents are allocated, records are not yet written
  kPutWritten,     // put.written    records are written, not yet synced
  kPutSynced,      // put.synced     records are synced, not yet in the catalog
  kPutCommitted,   // put.committed  records are in the catalog, not yet reported
  kCatalogOpen,    // catalog.open   the catalog is opened for writing
  kCatalogCommit,  // catalog.commit entries of new records are written to the catalog
  kCatalogErase,   // catalog.erase  names are to be erased from the catalog
  kEraseWritten,   // erase.written  the names are erased, their extents are not yet free
  kCatalogRead,    // catalog.read   entries are looked up in the catalog
  kCatalogScan,    // catalog.scan   an entry is read while the catalog is scanned
  kCatalogFacts,   // catalog.facts  registrations or pins are written to the catalog of a shard
  kShardSetAside,  // shard.set-aside  a damaged catalog was moved away; only sleep and crash work
  kSocketRights,   // socket.rights  larderd starts; error, full and short make it act as on a
                   //                kernel without SO_PASSRIGHTS
};
inline constexpr size_t kFaultPoints = 18;
[[nodiscard]] std::string_view ToString(FaultPoint point);

class FaultPoints {
 public:
  // Arms the points that `text` lists and disarms all others; an empty text disarms all.  If part
  // of the text is wrong, changes nothing and returns InvalidArgument, which names that part.
  [[nodiscard]] absl::Status Arm(std::string_view text);

  // The failure that the caller of At must pretend to have had.
  enum class Fault : uint8_t { kNone, kError, kFull, kShort };
  // The daemon calls this when it arrives at `point`, and then fails as the result says.  Sleeps
  // and crashes happen inside this call, which returns kNone after a sleep.
  [[nodiscard]] Fault At(FaultPoint point) {
    if (!armed_.load(std::memory_order_relaxed)) [[likely]]
      return Fault::kNone;
    return Arrive(point);
  }
  // The daemon calls this when it arrives at `point`.  Returns ResourceExhausted if it must fail
  // there with `full`, Unavailable for `error` and `short`, otherwise OK.  The message names the
  // point.  Sleeps and crashes happen inside this call.
  [[nodiscard]] absl::Status StatusAt(FaultPoint point);

  [[nodiscard]] bool armed() const { return armed_.load(std::memory_order_relaxed); }
  // arrivals: how often the daemon has arrived at `point` while the point was armed.  faults: at
  // how many of these arrivals an action happened.
  [[nodiscard]] uint64_t arrivals(FaultPoint point) const;
  [[nodiscard]] uint64_t faults(FaultPoint point) const;

 private:
  enum class Action : uint8_t { kNone, kError, kFull, kShort, kSleep, kCrash };
  struct Plan {
    Action action = Action::kNone;
    uint32_t every = 1;
    Duration sleep{};
  };
  // `plan` is a Plan in one integer, so that Arm can replace it while threads arrive at the point.
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
