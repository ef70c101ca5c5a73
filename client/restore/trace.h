// The last decisions of a scheduler, one record each.
//
// Ownership: a value.  Thread-safety: none.  Limits: keeps the last `capacity`; 0 keeps nothing and
// costs nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "client/restore/request.h"

namespace larder {

enum class DecisionKind : uint8_t {
  kUnspecified = 0,
  kCompute = 1,       // a step was given
  kLoad = 2,          // a load was given
  kHold = 3,          // the engine was given nothing of this request: loading is through sooner
  kLeave = 4,         // the channel was given nothing of this request: computing is through sooner
  kHedgeCompute = 5,  // computes what is being loaded
  kHedgeLoad = 6,     // loads what is being computed
  kCancelLoad = 7,    // computing has overtaken it
  kAbandonStep = 8,   // loading has overtaken it
  kLate = 9,          // a load passed its deadline
  kFailed = 10,       // a load failed
  kBeginSweep = 11,   // from here on loads come bottom-up
  kRestored = 12,
  kFinished = 13,
  kCancelRequest = 14,
  kLost = 15,  // a chunk can be neither loaded nor computed
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
  // What was weighed against what: seconds until the chosen way ends, and the other.
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
  // From the oldest that is kept.
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
