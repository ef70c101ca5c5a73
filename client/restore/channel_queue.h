// The loads that are under way on one channel, in the order in which they were given to it.
//
// A channel serves them one after the other, as far as anybody can tell from outside: the time
// between two arrivals, or since the queue was last empty, is what the later one cost.  Knows
// nothing of requests beyond their ids.
// Ownership: a value inside the scheduler.  Thread-safety: none.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "client/restore/cost_model.h"
#include "client/restore/request.h"

namespace larder {

class ChannelQueue {
 public:
  explicit ChannelQueue(ChannelId id) : id_(id) {}

  void Push(const Load& load, double now_s);
  // The load, if it is here; and what serving it took, when `served`.
  struct Taken {
    Load load;
    double service_s = 0;
    size_t ahead = 0;  // so many were given to the channel before it, and are still under way
  };
  [[nodiscard]] std::optional<Taken> Take(LoadId id, double now_s);

  void SetDeadline(LoadId id, double deadline_s);
  // Asks for the deadline of each load anew, when one that had `ahead` before it is gone.  Theirs
  // are never moved later: who is overtaken is no less late for it.
  template <class Ask>
  void Postpone(size_t ahead, const Ask& ask) {
    for (size_t i = 0; i < loads_.size(); ++i) {
      const double asked_s = ask(Load(loads_[i]));
      loads_[i].deadline_s = i < ahead ? std::min(loads_[i].deadline_s, asked_s) : asked_s;
    }
  }

  [[nodiscard]] const std::vector<Load>& loads() const { return loads_; }
  [[nodiscard]] double bytes() const { return bytes_; }
  // Seconds from now until all of it has arrived; `through`: until this one has.
  [[nodiscard]] double BacklogSeconds(const CostModel& costs, double now_s) const;
  [[nodiscard]] double BacklogSeconds(const CostModel& costs, double now_s, LoadId through) const;
  // Bytes of all up to this one.
  [[nodiscard]] double BytesThrough(LoadId through) const;
  // When serving the first of them began, and what it should take.  REQUIRES: there is one.
  [[nodiscard]] double busy_since_s() const { return busy_since_s_; }
  [[nodiscard]] double FirstSeconds(const CostModel& costs) const {
    return costs.LoadSeconds(id_, loads_.front().bytes);
  }
  // The earliest deadline among them.
  [[nodiscard]] double Deadline() const;
  [[nodiscard]] ChannelId id() const { return id_; }

 private:
  ChannelId id_;
  std::vector<Load> loads_;
  double bytes_ = 0;
  double busy_since_s_ = 0;  // when the first of them began to be served
};

}  // namespace larder
