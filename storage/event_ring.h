// What came to and left the tiers, as it happened: the latest events, each with a number, for who
// watches.
//
// Nobody waits for a reader: what he has not read when its place is needed is gone, and he is told
// so.  Events of a block are in the order in which they happened; what its tokens are, and its
// parent, is for the reader to ask.
// Ownership: part of BlockIndex.  Thread-safety: all methods from any thread; its lock is a leaf.
// Memory: 24 B an event, from when it is first used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "storage/block_state.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

struct TierEvent {
  Digest digest = {};
  VariantIndex variant = VariantIndex::kNone;
  Tier tier = Tier::kHost;
  bool stored = false;  // else removed
  // Of kDevice alone.  Cleared: all that this engine had is gone; the block says nothing.
  bool cleared = false;
  uint32_t engine = 0;  // as DeviceTable numbers it
  friend bool operator==(const TierEvent&, const TierEvent&) = default;
};

class EventRing {
 public:
  // 0: keeps none, and counts none.
  explicit EventRing(size_t events_max) : events_max_(events_max) {}

  void Append(const TierEvent& event) LARDER_EXCLUDES(mu_);

  // The number of the last event; the first is 1.  Cheap.
  [[nodiscard]] uint64_t newest() const { return newest_.load(std::memory_order_acquire); }
  // Those after number `after`, as many as there are and `to` holds; their number.  nullopt: some
  // of them are gone, or it is a number that is yet to come.
  [[nodiscard]] std::optional<size_t> Read(uint64_t after, std::span<TierEvent> to) const
      LARDER_EXCLUDES(mu_);

 private:
  const size_t events_max_;
  std::atomic<uint64_t> newest_{0};  // written under mu_ alone
  mutable Mutex mu_;
  // Event n at (n - 1) % events_max_.
  std::vector<TierEvent> events_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
