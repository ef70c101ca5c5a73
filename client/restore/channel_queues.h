// The queues of all channels, and for which request each channel was last given a load.
//
// Ownership: a value inside the scheduler.  Thread-safety: none.
#pragma once

#include <vector>

#include "client/restore/channel_queue.h"

namespace larder {

class ChannelQueues {
 public:
  // Returns the queue of a channel, and makes it if it does not exist yet.  May invalidate
  // references to other queues.
  [[nodiscard]] ChannelQueue& Of(ChannelId channel);
  // Returns null if the channel has no queue yet.
  [[nodiscard]] const ChannelQueue* Find(ChannelId channel) const;
  [[nodiscard]] std::vector<ChannelQueue>& all() { return queues_; }
  [[nodiscard]] const std::vector<ChannelQueue>& all() const { return queues_; }

  // Records that the channel was last given a load of this request.  REQUIRES: Of(channel) was
  // called.
  void SetServed(ChannelId channel, RequestId request) {
    served_[static_cast<size_t>(channel)] = request;
  }
  // Returns true if loads are under way on the channel, and the load that it was given last (which
  // may have ended) was one of another request.
  [[nodiscard]] bool ServesAnother(ChannelId channel, RequestId request) const;
  [[nodiscard]] bool HasLoadsOf(RequestId request) const;
  // Predicts the seconds until all loads that are under way on the channel have arrived; 0 if there
  // are none.
  [[nodiscard]] double BacklogSeconds(ChannelId channel, const CostModel& costs,
                                      double now_s) const;
  // The earliest deadline of a load; kNoDeadline if none is under way.
  [[nodiscard]] double Deadline() const;
  // The deadline of this load; kNoDeadline if it is not under way.
  [[nodiscard]] double DeadlineOf(LoadId load) const;

 private:
  std::vector<ChannelQueue> queues_;  // by ChannelId
  std::vector<RequestId> served_;     // by ChannelId
};

}  // namespace larder
