// The time until a deadline, for calls that take it in milliseconds.
#pragma once

#include <chrono>

#include "storage/clock.h"

namespace larder {

// Rounded up; 0 or less once the deadline has passed.
[[nodiscard]] inline std::chrono::milliseconds MillisecondsLeft(TimePoint deadline) {
  return std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyNow());
}

}  // namespace larder
