// Time as a parameter: state machines take `now`, owners take a Clock, tests take a ManualClock.
//
// Thread-safety: all of them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

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

// Deadlines that outlive a process, or are another's, are on the clock of the wall: milliseconds
// since 1970.
using WallClock = std::function<uint64_t()>;
[[nodiscard]] inline uint64_t UnixMilliseconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

// Stands still until told.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return TimePoint(Duration(ns_.load())); }
  void Advance(Duration by) { ns_ += by.count(); }

 private:
  std::atomic<int64_t> ns_{1'000'000'000};
};

}  // namespace larder
