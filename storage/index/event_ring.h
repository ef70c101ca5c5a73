// What came to and left the tiers, as it happened: the latest events, each with a number, for who
// watches.
//
// Nobody waits for a reader: what he has not read when its place is needed is gone, and he is told
// so.  Events of a block are in the order in which they happened; what its tokens are, and its
// parent, is for the reader to ask.  Those of DEVICE are kept apart, under the same numbers: an
// engine says as many as it likes, and must not take the place of what moves bytes.
// Ownership: part of BlockIndex.  Thread-safety: all methods from any thread; its lock is a leaf.
// Memory: 32 B an event, from when it is first used.
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
  bool stored : 1 = false;  // else removed
  // Of kDevice alone.  Cleared: all that this engine had is gone; the block says nothing.
  bool cleared : 1 = false;
  uint32_t engine = 0;  // as DeviceTable numbers it
  friend bool operator==(const TierEvent&, const TierEvent&) = default;
};

struct NumberedEvent {
  TierEvent event;
  uint64_t number = 0;
};
static_assert(sizeof(NumberedEvent) == 32);

class EventRing {
 public:
  // So many of HOST and DISK, and so many of DEVICE.  0: keeps none, and counts none.
  explicit EventRing(size_t events_max) : events_max_(events_max) {}

  [[nodiscard]] size_t events_max() const { return events_max_; }
  void Append(const TierEvent& event) LARDER_EXCLUDES(mu_);

  // The number of the last event; the first is 1.  Cheap.
  [[nodiscard]] uint64_t newest() const { return newest_.load(std::memory_order_acquire); }
  struct Progress {
    size_t events = 0;     // in `to`
    uint64_t through = 0;  // all that happened in these tiers up to this number is told
  };
  // Of `tiers`, what happened after number `after`; looks at no more events than `to` holds.
  // nullopt: some of it is gone, or it is a number that is yet to come.
  [[nodiscard]] std::optional<Progress> Read(uint64_t after, TierSet tiers,
                                             std::span<NumberedEvent> to) const
      LARDER_EXCLUDES(mu_);
  // Whether an event of DEVICE of this number is still there.
  [[nodiscard]] bool KnowsOfDevice(uint64_t number) const LARDER_EXCLUDES(mu_);

 private:
  // Events in the order of their numbers, the oldest where the next one goes once it is full.
  struct Lane {
    [[nodiscard]] const NumberedEvent& At(size_t i) const {  // the i-th oldest
      return events[(oldest + i) % events.size()];
    }
    [[nodiscard]] size_t FirstAfter(uint64_t number) const;

    std::vector<NumberedEvent> events;
    size_t oldest = 0;
    uint64_t forgotten = 0;  // the last number of what was
  };

  const size_t events_max_;
  std::atomic<uint64_t> newest_{0};  // written under mu_ alone
  mutable Mutex mu_;
  Lane stored_ LARDER_GUARDED_BY(mu_);  // of HOST and DISK
  Lane device_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
