// One run of an instruction-list fuzz: a seed, a number of steps, and the random numbers that
// follow from the seed.
//
// A test draws each decision from one FuzzRun and compares with a simple model after each step.
// The line that the constructor printed replays a failure.
//
// LARDER_FUZZ_SEED (decimal or 0x...) replays a run; without it each run has a new seed.
// LARDER_FUZZ_STEPS makes a run longer or shorter than the test's default.
// Ownership: a local variable of one test.
// Thread-safety: none.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace larder {

class FuzzRun {
 public:
  FuzzRun(const char* name, uint64_t default_steps)
      : seed_(FromEnvironment("LARDER_FUZZ_SEED", NewSeed())),
        steps_(FromEnvironment("LARDER_FUZZ_STEPS", default_steps)),
        rng_(seed_) {
    std::fprintf(stderr, "%s: replay with LARDER_FUZZ_SEED=%llu LARDER_FUZZ_STEPS=%llu\n", name,
                 static_cast<unsigned long long>(seed_), static_cast<unsigned long long>(steps_));
  }

  [[nodiscard]] uint64_t seed() const { return seed_; }
  [[nodiscard]] uint64_t steps() const { return steps_; }
  // The C++ standard specifies this generator, so a seed means the same everywhere.  It does not
  // specify distributions.
  [[nodiscard]] std::mt19937_64& rng() { return rng_; }

  // Nearly uniform in [0, n).  REQUIRES: n > 0.
  [[nodiscard]] uint64_t Below(uint64_t n) { return rng_() % n; }
  [[nodiscard]] bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  static uint64_t NewSeed() {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }
  // A value that is not a number ends the program, so that a replay cannot silently become another
  // run.
  static uint64_t FromEnvironment(const char* variable, uint64_t otherwise) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0') return otherwise;
    char* end = nullptr;
    errno = 0;
    const uint64_t value = std::strtoull(text, &end, 0);
    if (errno != 0 || *end != '\0' || *text == '-') {
      std::fprintf(stderr, "%s=%s is not a number\n", variable, text);
      std::exit(2);
    }
    return value;
  }

  const uint64_t seed_;
  const uint64_t steps_;
  std::mt19937_64 rng_;
};

}  // namespace larder
