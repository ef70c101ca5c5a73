// The latest events, numbered, for watchers.  An event says that a block entered or left a tier, or
// that an engine lost all its blocks in DEVICE.
//
// Writers do not wait for readers to catch up: an event may be overwritten before a reader has read
// it, which Read reports.  The events of a block in HOST and DISK are in the order in which they
// happened.  Events do not contain tokens or parents.
// All events share one sequence of numbers, but events of DEVICE are kept in a separate ring: an
// engine may report any number of them, and they must not overwrite the events of HOST and DISK.
// Ownership: part of BlockIndex.  Thread-safety: all methods from any thread.
// Locks: its lock is a leaf.
// Memory: 32 B per slot of a ring; each ring grows as events arrive.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "storage/index/block_state.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

struct TierEvent {
  Digest digest = {};
  VariantIndex variant = VariantIndex::kNone;
  Tier tier = Tier::kHost;
  bool stored : 1 = false;  // true: the block entered the tier; false: it left
  // For kDevice only: the engine lost all its blocks there, so the event names no block.
  bool cleared : 1 = false;
  uint32_t engine = 0;  // for kDevice only: the engine's number in DeviceTable
  friend bool operator==(const TierEvent&, const TierEvent&) = default;
};

struct NumberedEvent {
  TierEvent event;
  uint64_t number = 0;
};
static_assert(sizeof(NumberedEvent) == 32);

class EventRing {
 public:
  // Keeps up to `events_max` events of HOST and DISK together, and up to `events_max` of DEVICE.  0
  // disables the ring: events are neither kept nor numbered.
  explicit EventRing(size_t events_max) : events_max_(events_max) {}

  [[nodiscard]] size_t events_max() const { return events_max_; }
  void Append(const TierEvent& event) LARDER_EXCLUDES(mu_);

  // Returns the number of the latest event, or 0 if there was none; the first event is number 1.
  // Takes no lock.
  [[nodiscard]] uint64_t newest() const { return newest_.load(std::memory_order_acquire); }
  struct Progress {
    size_t events = 0;     // written to `to`
    uint64_t through = 0;  // all events of `tiers` after `after` and up to this number are in `to`
  };
  // Writes to `to` the events of `tiers` with numbers greater than `after`, in order.  Looks at no
  // more than to.size() events, so it may return none although there are some; the next call passes
  // Progress::through as `after`.  Returns nullopt if an event after `after` was overwritten in a
  // ring that `tiers` needs (HOST and DISK share one), or if `after` is greater than newest().
  [[nodiscard]] std::optional<Progress> Read(uint64_t after, TierSet tiers,
                                             std::span<NumberedEvent> to) const
      LARDER_EXCLUDES(mu_);
  // Returns true if no DEVICE event from this number (1 or more) on has been overwritten.
  [[nodiscard]] bool KnowsOfDevice(uint64_t number) const LARDER_EXCLUDES(mu_);

 private:
  // A ring of events in the order of their numbers.  In a full ring each new event overwrites the
  // oldest.
  struct Lane {
    [[nodiscard]] const NumberedEvent& At(size_t i) const {  // the i-th oldest
      return events[(oldest + i) % events.size()];
    }
    [[nodiscard]] size_t FirstAfter(uint64_t number) const;

    std::vector<NumberedEvent> events;
    size_t oldest = 0;
    uint64_t forgotten = 0;  // the number of the latest event that was overwritten; 0: none
  };

  const size_t events_max_;
  std::atomic<uint64_t> newest_{0};  // written only under mu_
  mutable Mutex mu_;
  Lane stored_ LARDER_GUARDED_BY(mu_);  // events of HOST and DISK
  Lane device_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
