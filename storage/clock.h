// Clocks.  Code whose timing tests must control takes the current time as a parameter (`now`) or
// reads it from a Clock, for which tests pass a ManualClock.  Other code calls SteadyNow.
//
// Thread-safety: all methods of these classes from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace larder {

using Duration = std::chrono::nanoseconds;
// Monotonic time.  Its zero is arbitrary, so it must not be sent to another process or stored.
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint Now() const = 0;
};

// Returns the current monotonic time.  Code whose timing tests must control takes a Clock instead.
[[nodiscard]] inline TimePoint SteadyNow() { return std::chrono::steady_clock::now(); }

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return SteadyNow(); }
};

// A function that returns the wall-clock time in milliseconds since 1970.  Deadlines that outlive
// the process, or that two processes compare, are on this clock.
using WallClock = std::function<uint64_t()>;
[[nodiscard]] inline uint64_t UnixMilliseconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

// A clock for tests.  Its time changes only when Advance is called.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return TimePoint(Duration(ns_.load())); }
  void Advance(Duration by) { ns_ += by.count(); }

 private:
  std::atomic<int64_t> ns_{1'000'000'000};
};

}  // namespace larder
