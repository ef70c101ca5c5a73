#include "storage/event_ring.h"

#include <algorithm>

namespace larder {

void EventRing::Append(const TierEvent& event) {
  if (events_max_ == 0) return;
  MutexLock lock(mu_);
  const uint64_t number = newest_.load(std::memory_order_relaxed) + 1;
  if (events_.size() < events_max_) {
    events_.push_back(event);
  } else {
    events_[(number - 1) % events_max_] = event;
  }
  newest_.store(number, std::memory_order_release);
}

std::optional<size_t> EventRing::Read(uint64_t after, std::span<TierEvent> to) const {
  MutexLock lock(mu_);
  const uint64_t newest = newest_.load(std::memory_order_relaxed);
  if (after > newest || newest - after > events_.size()) return std::nullopt;
  const size_t count = static_cast<size_t>(std::min<uint64_t>(newest - after, to.size()));
  for (size_t i = 0; i < count; ++i) to[i] = events_[(after + i) % events_max_];
  return count;
}

}  // namespace larder
