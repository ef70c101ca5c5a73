// How much of the long counts this run does: LARDER_TEST_SCALE, a tenth unless told (tests/run.sh
// --full says 1).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace larder::testing {

inline double TestScale() {
  const char* given = std::getenv("LARDER_TEST_SCALE");
  return given == nullptr ? 0.1 : std::atof(given);
}

// Of a count that --full does whole; at least 1.
inline uint64_t Scaled(uint64_t count) {
  return static_cast<uint64_t>(std::max(1.0, std::ceil(static_cast<double>(count) * TestScale())));
}

}  // namespace larder::testing
