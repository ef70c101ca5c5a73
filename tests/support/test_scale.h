// How much of the long counts this run does: LARDER_TEST_SCALE, by default a tenth (tests/run.sh
// --full sets it to 1). Where random draws begin: LARDER_TEST_SEED.  What bounds on memory allow.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <vector>

namespace larder::testing {

inline double TestScale() {
  const char* given = std::getenv("LARDER_TEST_SCALE");
  return given == nullptr ? 0.1 : std::atof(given);
}

// Scales a count that --full runs whole.  Returns at least 1.
inline uint64_t Scaled(uint64_t count) {
  return static_cast<uint64_t>(std::max(1.0, std::ceil(static_cast<double>(count) * TestScale())));
}

// Returns a new seed each time unless LARDER_TEST_SEED is set.  The seed is printed, so that a
// failure can be repeated.
inline uint32_t TestSeed() {
  const char* given = std::getenv("LARDER_TEST_SEED");
  const uint32_t seed =
      given == nullptr ? std::random_device()() : static_cast<uint32_t>(std::atoll(given));
  std::printf("LARDER_TEST_SEED=%u\n", seed);
  return seed;
}

// Returns all cases if LARDER_TEST_SCALE is at least 1, otherwise `few` of them, drawn at random
// and in their order.  For cases each of which takes tens of seconds.
template <typename T>
std::vector<T> SomeOf(const std::vector<T>& cases, size_t few) {
  if (TestScale() >= 1) return cases;
  std::vector<T> some;
  std::ranges::sample(cases, std::back_inserter(some), static_cast<ptrdiff_t>(few),
                      std::mt19937(TestSeed()));
  return some;
}

// A bound on the memory that a process takes.  Under the address sanitizer it is three times as
// large: redzones, the quarantine, and an allocator that gives nothing back.
constexpr uint64_t MemoryBound(uint64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  return 3 * bytes;
#else
  return bytes;
#endif
}

}  // namespace larder::testing
