// Clocks.  Code that a test runs at chosen times takes the time as a parameter (`now`), or reads it
// from a Clock or a WallClock that the test provides.
//
// Thread-safety: all methods of the classes in this file from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace larder {

using Duration = std::chrono::nanoseconds;
// Monotonic time.  Its zero is arbitrary, so no TimePoint may leave the process.
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint Now() const = 0;
};

// Returns the current monotonic time.
[[nodiscard]] inline TimePoint SteadyNow() { return std::chrono::steady_clock::now(); }

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override { return SteadyNow(); }
};

// A function that returns the wall-clock time in milliseconds since 1970, for deadlines that
// outlive the process or that two processes compare.
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
