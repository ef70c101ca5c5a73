#include "storage/index/eviction_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace larder {
namespace {

// The number of tokens that is assumed for a block whose token ids are unknown.
constexpr uint32_t kTokensUnknown = kStepTokens;
// The cost of loading a block relative to computing it.
constexpr double kLoadShare = 0.25;
// For how long after its last use a block is taken to wait for its spill, and the factor by which
// its worth is higher meanwhile.
constexpr uint32_t kSpill_s = 10;
constexpr double kUnwrittenShare = 1000;

// The prior for every block: half a use in 20 seconds, and every fourth use is the last.  A third
// of these values, or three times as much, changes little.
constexpr double kPresumedUses = 0.5;
constexpr double kPresumedSpan_s = 20;
constexpr double kLastUseShare = 0.25;
// A client that used a block in a burst and then paused (an agent that waits for a build) may come
// back.  So the expected rate of use of a block is at least this share of that of a block used once
// and idle as long.
constexpr double kPauseShare = 0.3;

constexpr uint32_t kUsesMax = 15;
constexpr uint32_t kSpanSteps = 64;  // codes per octave
constexpr uint32_t kSpanMax_s = (1u << 31) - 1;

// Levels of the number of uses (1, 2 to 4, 5 or more) and of the mean seconds between uses (below
// 8, below 64, below 512, below 4,096, and 4,096 or more).
constexpr uint32_t kUsesLevels = 3;
constexpr uint32_t kGapLevels = 5;
constexpr uint32_t kBitsPerGapLevel = 3;
static_assert(2 * (1 + kUsesLevels * kGapLevels) == kReuseClasses);

// Returns 0 for 0 seconds, otherwise 1 + kSpanSteps x log2(seconds), rounded down, with log2
// interpolated linearly between powers of two.
uint16_t SpanCode(uint32_t seconds) {
  if (seconds == 0) return 0;
  const auto octave = static_cast<uint32_t>(std::bit_width(seconds)) - 1;
  const auto within =
      static_cast<uint32_t>((uint64_t{seconds} * kSpanSteps >> octave) - kSpanSteps);
  return static_cast<uint16_t>(1 + octave * kSpanSteps + within);
}

// Returns the expected uses per second of a block that was used `uses` times in `span_s` seconds
// and has been idle for `idle_s` seconds since.  `may_end`: the last use may have been the last one
// ever.
double UsesPerSecond(double uses, double span_s, uint32_t idle_s, bool may_end) {
  const double rate = uses / (span_s + idle_s);
  if (!may_end) return rate;
  // The probability that a client that uses the block at this rate, and will use it again, has not
  // used it for `idle_s` seconds.
  const double away = std::exp(-uses * std::log1p(idle_s / span_s));
  const double here = (1 - kLastUseShare) * away;
  return rate * here / (kLastUseShare + here);
}

double UsesPerSecond(ReuseHistory history, uint32_t idle_s) {
  const double as_before =
      UsesPerSecond(history.uses + kPresumedUses, SpanSeconds(history) + kPresumedSpan_s, idle_s,
                    history.shared == 0);
  const double as_if_new = UsesPerSecond(kPresumedUses, kPresumedSpan_s, idle_s, true);
  return std::max(as_before, kPauseShare * as_if_new);
}

}  // namespace

uint32_t SpanSeconds(ReuseHistory history) {
  if (history.span == 0) return 0;
  const uint32_t octave = (history.span - 1u) / kSpanSteps;
  const uint32_t within = (history.span - 1u) % kSpanSteps;
  return static_cast<uint32_t>((uint64_t{kSpanSteps + within} << octave) / kSpanSteps);
}

ReuseHistory UsedAgain(ReuseHistory before, uint32_t idle_s) {
  if (idle_s == 0) return before;
  uint64_t span_s = std::min<uint64_t>(uint64_t{SpanSeconds(before)} + idle_s, kSpanMax_s);
  uint32_t uses = before.uses + 1u;
  if (uses > kUsesMax) {
    uses /= 2;
    span_s /= 2;
  }
  ReuseHistory after = before;
  after.span = SpanCode(static_cast<uint32_t>(span_s)) & 0x7FFu;
  after.uses = uses & kUsesMax;
  return after;
}

uint32_t ReuseClassOf(ReuseHistory history) {
  const uint32_t shared = history.shared;
  if (history.uses == 0) return shared;
  const uint32_t uses_level = history.uses == 1 ? 0 : history.uses < 5 ? 1 : 2;
  const auto gap_bits = static_cast<uint32_t>(std::bit_width(SpanSeconds(history) / history.uses));
  const uint32_t gap_level =
      std::min(kGapLevels - 1, (std::max(gap_bits, 1u) - 1) / kBitsPerGapLevel);
  return 2 * (1 + uses_level * kGapLevels + gap_level) + shared;
}

double EvictionPolicy::Worth(const EvictionCandidate& candidate) const {
  const uint32_t tokens = candidate.tokens == 0 ? kTokensUnknown : candidate.tokens;
  const bool waits = candidate.unwritten && candidate.idle_s < kSpill_s &&
                     spilling_.load(std::memory_order_relaxed);
  const double cost = tokens * (candidate.elsewhere ? kLoadShare : waits ? kUnwrittenShare : 1.0);
  const double bytes = static_cast<double>(std::max<uint64_t>(candidate.bytes.value(), 1));
  // The worth of a block that has been idle for very long is tiny, but not 0.
  return std::max(UsesPerSecond(candidate.history, candidate.idle_s) * cost / bytes,
                  std::numeric_limits<double>::min());
}

}  // namespace larder
