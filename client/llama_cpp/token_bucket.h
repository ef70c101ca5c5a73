// Emulates a slower link on a machine that has none: says when bytes that were handed to it would
// have come out at the other end.  It moves nothing and never sleeps; who uses it waits.
//
// The link carries what it is given one after the other, at one rate.  After a pause of less than
// `slack` it carries on as if it had not paused: a real link would have had the next request by
// then, while an emulated one is asked by a thread that had to be woken.
// Ownership: a value.  Thread-safety: all of it; the channels of one link share one bucket.
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

  // When `bytes`, handed over at `now`, are through.
  [[nodiscard]] TimePoint Pass(ByteCount bytes, TimePoint now) LARDER_EXCLUDES(mu_);
  [[nodiscard]] double bytes_per_s() const { return bytes_per_s_; }

 private:
  const double bytes_per_s_;
  const Duration slack_;
  Mutex mu_;
  bool used_ LARDER_GUARDED_BY(mu_) = false;
  TimePoint through_ LARDER_GUARDED_BY(mu_) = {};  // of all that it was given
};

}  // namespace larder
