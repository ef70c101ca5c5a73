// Counts what all actors of the storm did and what they found wrong.
//
// Thread-safety: all methods may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>

namespace larder::e2e {

enum class StormVerb : uint8_t {
  kPut,
  kGet,
  kLease,
  kReport,
  kLookup,
  kPrefetch,
  kPin,
  kUnpin,
  kMove,
  kClear,
  kCompress,
  kInstances,
  kWatch,
  kStats,
  kVerify
};
inline constexpr std::array<const char*, 15> kStormVerbs = {
    "put",  "get",   "lease",    "report",    "lookup", "prefetch", "pin",   "unpin",
    "move", "clear", "compress", "instances", "watch",  "stats",    "verify"};

struct StormTally {
  std::array<std::atomic<uint64_t>, kStormVerbs.size()> steps{};
  // Steps of engine processes, which do not report their verbs.
  std::atomic<uint64_t> child_steps{0};
  std::atomic<uint64_t> hits{0}, unanswered{0}, cancelled{0};
  // Blocks that a verb has handled in calm rounds, and blocks that it kept because they were in
  // use.
  // The model accepts "in use" at any time, so the test checks that it is not the usual answer.
  struct Done {
    std::atomic<uint64_t> done{0}, left{0};
    void Add(uint64_t did, uint64_t in_use) {
      done += did;
      left += in_use;
    }
  };
  Done recoded, moved, cleared;
  std::atomic<uint64_t> differences{0}, wrong_bytes{0};

  void Count(StormVerb verb) { ++steps[static_cast<size_t>(verb)]; }
  [[nodiscard]] uint64_t StepsSoFar() const {
    uint64_t all = child_steps;
    for (const auto& of_verb : steps) all += of_verb;
    return all;
  }
  // Whether engines have done more steps than the controllers.  Engines are faster, so they wait
  // meanwhile, and every verb gets its share of the steps.
  [[nodiscard]] bool EnginesAhead() const {
    uint64_t engines = child_steps;
    for (const StormVerb verb :
         {StormVerb::kPut, StormVerb::kGet, StormVerb::kLease, StormVerb::kReport})
      engines += steps[static_cast<size_t>(verb)];
    return 2 * engines > StepsSoFar();
  }
  void Differs(const std::string& what) {
    if (++differences <= 10) std::fprintf(stderr, "difference: %s\n", what.c_str());
  }
  void WrongBytes(const std::string& what) {
    if (++wrong_bytes <= 10) std::fprintf(stderr, "wrong bytes: %s\n", what.c_str());
  }
};

}  // namespace larder::e2e
