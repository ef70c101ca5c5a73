// A circuit breaker for a failing disk: while the breaker is open, its user should leave the disk
// alone.  A failure opens the breaker for 50 ms, repeated failures for up to 5 s.  A success closes
// it.
//
// Ownership: a member of the class that uses the disk.  Thread-safety: all methods from any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "storage/clock.h"

namespace larder {

class DiskBreaker {
 public:
  static constexpr Duration kFirst = std::chrono::milliseconds(50);
  static constexpr Duration kLongest = std::chrono::seconds(5);

  // Returns true while the caller should leave the disk alone.
  [[nodiscard]] bool open(TimePoint now) const {
    return now < until_.load(std::memory_order_relaxed);
  }
  // Returns the time from which the disk may be used again, which is past if the disk may be used
  // now.
  [[nodiscard]] TimePoint until() const { return until_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t times_opened() const { return opened_.load(std::memory_order_relaxed); }

  void Failed(TimePoint now) {
    if (open(now)) return;  // operations that were under way together may fail; they count once
    const uint32_t failures = failures_.fetch_add(1, std::memory_order_relaxed);
    opened_.fetch_add(1, std::memory_order_relaxed);
    until_.store(now + std::min(kLongest, kFirst * (int64_t{1} << std::min(failures, 7u))),
                 std::memory_order_relaxed);
  }
  void Succeeded() {
    if (failures_.load(std::memory_order_relaxed) == 0) return;
    failures_.store(0, std::memory_order_relaxed);
    until_.store(TimePoint(), std::memory_order_relaxed);
  }

 private:
  std::atomic<TimePoint> until_{TimePoint()};
  std::atomic<uint32_t> failures_{0};
  std::atomic<uint64_t> opened_{0};
};

}  // namespace larder
