// The loads that are under way on one channel, in the order in which they were given to it.
//
// The queue assumes that the channel serves loads one after the other: the service of a load begins
// when it becomes the first load of the queue.
// Ownership: a value inside the scheduler.  Thread-safety: none.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "client/restore/costs/cost_model.h"
#include "client/restore/request/request.h"

namespace larder {

class ChannelQueue {
 public:
  explicit ChannelQueue(ChannelId id) : id_(id) {}

  void Push(const Load& load, double now_s);
  // A load that Take has removed.
  struct Taken {
    Load load;
    double service_s = 0;  // since the channel began to serve the first load of the queue
    size_t ahead = 0;      // loads before it in the queue, which are still under way
  };
  // Removes the load from the queue.  Returns nullopt if the load is not in this queue.
  [[nodiscard]] std::optional<Taken> Take(LoadId id, double now_s);

  void SetDeadline(LoadId id, double deadline_s);
  // Computes the deadline of each load again (`ask`), after a load with `ahead` loads in front of
  // it was removed.  The deadlines of those `ahead` loads never move later: they are no less late
  // because a load behind them arrived first.
  template <class Ask>
  void Postpone(size_t ahead, const Ask& ask) {
    for (size_t i = 0; i < loads_.size(); ++i) {
      const double asked_s = ask(Load(loads_[i]));
      loads_[i].deadline_s = i < ahead ? std::min(loads_[i].deadline_s, asked_s) : asked_s;
    }
  }

  [[nodiscard]] const std::vector<Load>& loads() const { return loads_; }
  [[nodiscard]] double bytes() const { return bytes_; }
  // Predicts the seconds until all loads have arrived; 0 if the queue is empty.
  [[nodiscard]] double BacklogSeconds(const CostModel& costs, double now_s) const;
  // Predicts the seconds until load `through`, which is in the queue, has arrived.
  [[nodiscard]] double BacklogSeconds(const CostModel& costs, double now_s, LoadId through) const;
  // Bytes of the loads from the front of the queue through load `through`.
  [[nodiscard]] double BytesThrough(LoadId through) const;
  // When the channel began to serve the first load.  REQUIRES: the queue is not empty.
  [[nodiscard]] double busy_since_s() const { return busy_since_s_; }
  // Predicts how long the channel serves the first load.  REQUIRES: the queue is not empty.
  [[nodiscard]] double FirstSeconds(const CostModel& costs) const {
    return costs.LoadSeconds(id_, loads_.front().bytes);
  }
  // The earliest deadline of a load; kNoDeadline if the queue is empty.
  [[nodiscard]] double Deadline() const;
  [[nodiscard]] ChannelId id() const { return id_; }

 private:
  ChannelId id_;
  std::vector<Load> loads_;
  double bytes_ = 0;
  double busy_since_s_ = 0;  // when the channel began to serve the first load
};

}  // namespace larder
