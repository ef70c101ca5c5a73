// See channel_queue.h.
#include "client/restore/channel_queue.h"

#include <algorithm>

namespace larder {

void ChannelQueue::Push(const Load& load, double now_s) {
  if (loads_.empty()) busy_since_s_ = now_s;
  loads_.push_back(load);
  bytes_ += load.bytes;
}

std::optional<ChannelQueue::Taken> ChannelQueue::Take(LoadId id, double now_s) {
  const auto at =
      std::find_if(loads_.begin(), loads_.end(), [&](const Load& load) { return load.id == id; });
  if (at == loads_.end()) return std::nullopt;
  Taken taken{*at, now_s - busy_since_s_, static_cast<size_t>(at - loads_.begin())};
  if (at == loads_.begin()) busy_since_s_ = now_s;
  bytes_ -= at->bytes;
  loads_.erase(at);
  if (loads_.empty()) bytes_ = 0;  // removes what rounding has left
  return taken;
}

void ChannelQueue::SetDeadline(LoadId id, double deadline_s) {
  for (Load& load : loads_) {
    if (load.id == id) load.deadline_s = deadline_s;
  }
}

double ChannelQueue::BacklogSeconds(const CostModel& costs, double now_s) const {
  return loads_.empty() ? 0 : BacklogSeconds(costs, now_s, loads_.back().id);
}

double ChannelQueue::BytesThrough(LoadId through) const {
  double bytes = 0;
  for (const Load& load : loads_) {
    bytes += load.bytes;
    if (load.id == through) break;
  }
  return bytes;
}

double ChannelQueue::BacklogSeconds(const CostModel& costs, double now_s, LoadId through) const {
  const double bytes = BytesThrough(through);
  if (bytes == 0) return 0;
  // If the first load is late by t seconds, it is taken to arrive in t seconds.
  const double first = costs.LoadSeconds(id_, loads_.front().bytes);
  const double served = now_s - busy_since_s_;
  const double rest = costs.LoadSeconds(id_, bytes) - first;
  return rest + (served < first ? first - served : served - first);
}

double ChannelQueue::Deadline() const {
  double deadline = kNoDeadline;
  for (const Load& load : loads_) deadline = std::min(deadline, load.deadline_s);
  return deadline;
}

}  // namespace larder
