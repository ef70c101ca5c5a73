// Time as a parameter: state machines take `now`, the classes that own them take a Clock, and tests
// pass a ManualClock.
//
// Thread-safety: all of these classes, from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace larder {

using Duration = std::chrono::nanoseconds;
// Monotonic time.  It has no meaning in another process, so it is neither sent nor stored.
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint Now() const = 0;
};

// Returns monotonic time, for code whose waits tests do not control; other code takes a Clock.
[[nodiscard]] inline TimePoint SteadyNow() { return std::chrono::steady_clock::now(); }

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return SteadyNow(); }
};

// Returns wall-clock time in milliseconds since 1970.  A deadline that outlives this process, or
// that another process set, is on this clock.
using WallClock = std::function<uint64_t()>;
[[nodiscard]] inline uint64_t UnixMilliseconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

// Advances only when a test calls Advance.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return TimePoint(Duration(ns_.load())); }
  void Advance(Duration by) { ns_ += by.count(); }

 private:
  std::atomic<int64_t> ns_{1'000'000'000};
};

}  // namespace larder
