// The last decisions of a scheduler, one record each.
//
// Ownership: a value.  Thread-safety: none.  Limits: keeps the last `capacity` decisions; with 0 it
// keeps none.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "client/restore/request/request.h"

namespace larder {

enum class DecisionKind : uint8_t {
  kUnspecified = 0,
  kCompute = 1,       // the engine was given a step
  kLoad = 2,          // a channel was given a load
  kHold = 3,          // this work is not worth computing
  kLeave = 4,         // the channel was not given this load: computing ends sooner
  kHedgeCompute = 5,  // the engine computes what a channel is loading
  kHedgeLoad = 6,     // a channel loads what the engine is computing
  kCancelLoad = 7,    // the load is no longer needed
  kAbandonStep = 8,   // loading has overtaken the step
  kLate = 9,          // a load passed its deadline
  kFailed = 10,       // a load failed
  kBeginSweep = 11,   // loads begin to come bottom-up
  kRestored = 12,
  kFinished = 13,
  kCancelRequest = 14,
  kLost = 15,  // the request ends as lost (Outcome::lost)
};
[[nodiscard]] const char* ToString(DecisionKind kind);

struct Decision {
  double now_s = 0;
  DecisionKind kind = DecisionKind::kUnspecified;
  RequestId request = {};
  uint16_t stage = 0, rank = 0;
  ChannelId channel = ChannelId::kNowhere;
  TokenRange tokens = {};
  StageLayers layers = {};
  // Mostly the seconds until the chosen way ends, and, if it was compared with another way, until
  // that way would end.  0 where there is no such time.
  double chosen_s = 0, other_s = 0;
};

class Trace {
 public:
  explicit Trace(size_t capacity) : capacity_(capacity) { ring_.reserve(capacity); }

  void Add(const Decision& decision) {
    if (capacity_ == 0) return;
    if (ring_.size() < capacity_) {
      ring_.push_back(decision);
    } else {
      ring_[count_ % capacity_] = decision;
    }
    ++count_;
  }
  // Visits the decisions that are kept, the oldest first.
  void ForEach(const std::function<void(const Decision&)>& visit) const {
    for (size_t i = 0; i < ring_.size(); ++i) visit(ring_[(count_ + i) % ring_.size()]);
  }
  [[nodiscard]] uint64_t count() const { return count_; }

 private:
  size_t capacity_;
  std::vector<Decision> ring_;
  uint64_t count_ = 0;
};

}  // namespace larder
