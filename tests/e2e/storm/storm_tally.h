// What all actors of the storm did, and what they found wrong.
//
// Thread-safety: all methods from any thread.
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
  // Of engines that are processes of their own, which do not say what they did.
  std::atomic<uint64_t> child_steps{0};
  std::atomic<uint64_t> hits{0}, unanswered{0}, cancelled{0};
  // Of a verb, where nothing presses: blocks that it did, and those that it left, as in use.  The
  // model takes "in use" from it at any time, so it must not be all that is ever said.
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
  // Engines are the faster ones: they wait while they have done more than the controllers, so that
  // every verb has its share.
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
