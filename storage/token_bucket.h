// Emulates a slow link on a machine that has none: computes when bytes that enter the link would
// arrive at its other end.  It moves no bytes and never sleeps; the caller waits.
//
// The link carries transfers one after the other, at one rate.  After a pause of at most `slack`
// the link continues as if there had been no pause: a real link would already have had the next
// request, but the thread that uses the emulated link had to be woken first.
// Thread-safety: any thread may call; the channels of one link share one bucket.
#pragma once

#include <chrono>

#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class TokenBucket {
 public:
  // REQUIRES: bytes_per_s > 0.
  explicit TokenBucket(double bytes_per_s, Duration slack = std::chrono::milliseconds(10));

  // Returns when `bytes` that enter the link at `now` have arrived.  After a pause of at most
  // `slack`, the result may be before `now`.
  [[nodiscard]] TimePoint Pass(ByteCount bytes, TimePoint now) LARDER_EXCLUDES(mu_);
  [[nodiscard]] double bytes_per_s() const { return bytes_per_s_; }

 private:
  const double bytes_per_s_;
  const Duration slack_;
  Mutex mu_;
  bool used_ LARDER_GUARDED_BY(mu_) = false;
  TimePoint through_ LARDER_GUARDED_BY(mu_) = {};  // when everything so far has arrived
};

}  // namespace larder
