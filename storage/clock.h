// Time as a parameter: state machines take `now`, owners take a Clock, tests take a ManualClock.
//
// Thread-safety: all of them.
#pragma once

#include <atomic>
#include <chrono>

namespace larder {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;  // monotonic; never leaves the process

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

// Stands still until told.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return TimePoint(Duration(ns_.load())); }
  void Advance(Duration by) { ns_ += by.count(); }

 private:
  std::atomic<int64_t> ns_{1'000'000'000};
};

}  // namespace larder
