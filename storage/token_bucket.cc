#include "storage/token_bucket.h"

#include <algorithm>

#include "storage/check.h"

namespace larder {

TokenBucket::TokenBucket(double bytes_per_s, Duration slack)
    : bytes_per_s_(bytes_per_s), slack_(slack) {
  LARDER_CHECK(bytes_per_s > 0);
}

TimePoint TokenBucket::Pass(ByteCount bytes, TimePoint now) {
  const auto takes = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(static_cast<double>(bytes.value()) / bytes_per_s_));
  MutexLock lock(mu_);
  const bool goes_on = used_ && through_ + slack_ >= now;
  through_ = (goes_on ? through_ : now) + takes;
  used_ = true;
  return through_;
}

}  // namespace larder
