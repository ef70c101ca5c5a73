#include "storage/index/event_ring.h"

namespace larder {
namespace {

constexpr TierSet kDeviceBit = TierBit(Tier::kDevice);

}  // namespace

void EventRing::Append(const TierEvent& event) {
  if (events_max_ == 0) return;
  MutexLock lock(mu_);
  const uint64_t number = newest_.load(std::memory_order_relaxed) + 1;
  Lane& lane = event.tier == Tier::kDevice ? device_ : stored_;
  if (lane.events.size() < events_max_) {
    lane.events.push_back({event, number});
  } else {
    NumberedEvent& place = lane.events[lane.oldest];
    lane.forgotten = place.number;
    place = {event, number};
    lane.oldest = (lane.oldest + 1) % events_max_;
  }
  newest_.store(number, std::memory_order_release);
}

size_t EventRing::Lane::FirstAfter(uint64_t number) const {
  size_t low = 0, high = events.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (At(middle).number > number) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::optional<EventRing::Progress> EventRing::Read(uint64_t after, TierSet tiers,
                                                   std::span<NumberedEvent> to) const {
  MutexLock lock(mu_);
  const uint64_t newest = newest_.load(std::memory_order_relaxed);
  const bool of_stored = (tiers & ~kDeviceBit) != 0, of_device = (tiers & kDeviceBit) != 0;
  if (after > newest || (of_stored && stored_.forgotten > after) ||
      (of_device && device_.forgotten > after)) {
    return std::nullopt;
  }
  size_t stored = of_stored ? stored_.FirstAfter(after) : stored_.events.size();
  size_t device = of_device ? device_.FirstAfter(after) : device_.events.size();
  Progress progress{.events = 0, .through = after};
  for (size_t looked = 0; looked < to.size(); ++looked) {
    const bool any_stored = stored < stored_.events.size(),
               any_device = device < device_.events.size();
    if (!any_stored && !any_device) break;
    const bool next_is_stored =
        any_stored && (!any_device || stored_.At(stored).number < device_.At(device).number);
    const NumberedEvent& next = next_is_stored ? stored_.At(stored++) : device_.At(device++);
    progress.through = next.number;
    if ((tiers & TierBit(next.event.tier)) != 0) to[progress.events++] = next;
  }
  if (stored == stored_.events.size() && device == device_.events.size()) progress.through = newest;
  return progress;
}

bool EventRing::KnowsOfDevice(uint64_t number) const {
  MutexLock lock(mu_);
  return number > device_.forgotten;
}

}  // namespace larder
