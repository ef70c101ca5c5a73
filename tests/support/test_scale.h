// How much of the long counts this run does: LARDER_TEST_SCALE, a tenth unless told (tests/run.sh
// --full says 1).  And where they begin: LARDER_TEST_SEED.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace larder::testing {

inline double TestScale() {
  const char* given = std::getenv("LARDER_TEST_SCALE");
  return given == nullptr ? 0.1 : std::atof(given);
}

// Of a count that --full does whole; at least 1.
inline uint64_t Scaled(uint64_t count) {
  return static_cast<uint64_t>(std::max(1.0, std::ceil(static_cast<double>(count) * TestScale())));
}

// Another each time unless LARDER_TEST_SEED says; printed, so that a failure can be run again.
inline uint32_t TestSeed() {
  const char* given = std::getenv("LARDER_TEST_SEED");
  const uint32_t seed =
      given == nullptr ? std::random_device()() : static_cast<uint32_t>(std::atoll(given));
  std::printf("LARDER_TEST_SEED=%u\n", seed);
  return seed;
}

}  // namespace larder::testing
