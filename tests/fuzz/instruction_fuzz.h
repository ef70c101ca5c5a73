// One run of an instruction-list fuzz: a seed, a number of steps, and the randomness they name.
//
// A test draws every decision from one FuzzRun, compares with a simple model after each step, and a
// failure is replayed by the line that the constructor printed.
//
// LARDER_FUZZ_SEED replays (decimal or 0x...); without it every run has a new seed.
// LARDER_FUZZ_STEPS makes a run longer or shorter than the test's default.
// Ownership, threads: a local of one test, used by one thread.
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
  // As specified by the standard, so a seed means the same everywhere; its distributions are not.
  [[nodiscard]] std::mt19937_64& rng() { return rng_; }

  // Uniform in [0, n), nearly.  REQUIRES: n > 0.
  [[nodiscard]] uint64_t Below(uint64_t n) { return rng_() % n; }
  [[nodiscard]] bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  static uint64_t NewSeed() {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }
  // A value that is no number ends the program: a replay must not silently become another run.
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
