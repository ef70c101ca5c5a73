#include "client/restore/channel_queues.h"

#include <algorithm>

namespace larder {

ChannelQueue& ChannelQueues::Of(ChannelId channel) {
  while (queues_.size() <= static_cast<size_t>(channel)) {
    queues_.emplace_back(static_cast<ChannelId>(queues_.size()));
    served_.emplace_back();
  }
  return queues_[static_cast<size_t>(channel)];
}

const ChannelQueue* ChannelQueues::Find(ChannelId channel) const {
  const auto at = static_cast<size_t>(channel);
  return at < queues_.size() ? &queues_[at] : nullptr;
}

bool ChannelQueues::ServesAnother(ChannelId channel, RequestId request) const {
  const ChannelQueue* queue = Find(channel);
  if (queue == nullptr || queue->loads().empty()) return false;
  const RequestId served = served_[static_cast<size_t>(channel)];
  return served && served != request;
}

bool ChannelQueues::HasLoadsOf(RequestId request) const {
  return std::ranges::any_of(queues_, [request](const ChannelQueue& queue) {
    return std::ranges::any_of(queue.loads(),
                               [request](const Load& load) { return load.request == request; });
  });
}

double ChannelQueues::BacklogSeconds(ChannelId channel, const CostModel& costs,
                                     double now_s) const {
  const ChannelQueue* queue = Find(channel);
  return queue == nullptr ? 0 : queue->BacklogSeconds(costs, now_s);
}

double ChannelQueues::Deadline() const {
  double deadline_s = kNoDeadline;
  for (const ChannelQueue& queue : queues_) deadline_s = std::min(deadline_s, queue.Deadline());
  return deadline_s;
}

double ChannelQueues::DeadlineOf(LoadId id) const {
  for (const ChannelQueue& queue : queues_) {
    for (const Load& load : queue.loads()) {
      if (load.id == id) return load.deadline_s;
    }
  }
  return kNoDeadline;
}

}  // namespace larder
