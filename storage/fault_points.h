// Named places where a test makes the daemon fail, stall or die; each is one step of what the disk
// tier does.
//
// Off unless armed: then At costs one load and a branch.  Not for production: larderd says so when
// it starts with any armed.
//
// Armed by text, a list of POINT=ACTION[:ARGUMENT][/EVERY] separated by commas, as in
//   data.write=error/32,data.sync=sleep:500ms,commit.before=crash/1
// ACTION: error (EIO), full (ENOSPC), short (half of the bytes; elsewhere an error), sleep:TIME
// (us, ms, s), crash (_exit(66), as kill -9 would end it).  EVERY n (default 1): on the average one
// arrival of n, by a fixed sequence of the point's own, so that a run can be had again.
//
// Ownership: made by server/main or a test, outlives whom it is given to.  Thread-safety: all
// methods from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "storage/clock.h"

namespace larder {

enum class FaultPoint : uint8_t {
  kDataCreate,     // data.create    a data file is made
  kDataCreated,    // data.created   it is there, its directory is not synced
  kDataWrite,      // data.write     bytes of a record, each call to the system
  kDataRead,       // data.read      the same
  kDataSync,       // data.sync      records become durable
  kPutAllocated,   // put.allocated  room was taken, nothing written
  kPutWritten,     // put.written    records are written, not synced
  kPutSynced,      // put.synced     synced, not in the catalog
  kPutCommitted,   // put.committed  in the catalog, not yet reported
  kCatalogOpen,    // catalog.open
  kCatalogCommit,  // catalog.commit the catalog's own write
  kCatalogErase,   // catalog.erase  names go
  kEraseWritten,   // erase.written  names are gone, their room is not yet free
  kCatalogRead,    // catalog.read
  kCatalogScan,    // catalog.scan   each entry, at start
  kCatalogFacts,   // catalog.facts  registrations and pins become durable, in each shard
  kShardSetAside,  // shard.set-aside  a damaged shard was renamed, none is in its place
  kSocketRights,   // socket.rights  at the start; error: as on a kernel without SO_PASSRIGHTS
};
inline constexpr size_t kFaultPoints = 18;
[[nodiscard]] std::string_view ToString(FaultPoint point);

class FaultPoints {
 public:
  // InvalidArgument with the part that is wrong and what would be right; then nothing changed.
  // An empty text disarms all.
  [[nodiscard]] absl::Status Arm(std::string_view text);

  // What to do here: kNone, or an error to answer with.  Sleeps and deaths happen inside.
  enum class Fault : uint8_t { kNone, kError, kFull, kShort };
  [[nodiscard]] Fault At(FaultPoint point) {
    if (!armed_.load(std::memory_order_relaxed)) [[likely]]
      return Fault::kNone;
    return Arrive(point);
  }
  // The same where only an error makes sense: Unavailable or ResourceExhausted, naming the point.
  [[nodiscard]] absl::Status StatusAt(FaultPoint point);

  [[nodiscard]] bool armed() const { return armed_.load(std::memory_order_relaxed); }
  // Arrivals at an armed point, and what was done there.
  [[nodiscard]] uint64_t arrivals(FaultPoint point) const;
  [[nodiscard]] uint64_t faults(FaultPoint point) const;

 private:
  enum class Action : uint8_t { kNone, kError, kFull, kShort, kSleep, kCrash };
  struct Plan {
    Action action = Action::kNone;
    uint32_t every = 1;
    Duration sleep{};
  };
  // Written by Arm, read by Arrive, packed so that each is one atomic.
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
