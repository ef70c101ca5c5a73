#include "storage/eviction.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace larder {
namespace {

// Stands in where no token ids are known.
constexpr uint32_t kTokensUnknown = kStepTokens;
// What loading a block costs of what computing it does.
constexpr double kLoadShare = 0.25;
// How long a block may wait for its turn to be written, and what it is worth so long: more than
// what a written one is ever likely to be.
constexpr uint32_t kSpill_s = 10;
constexpr double kUnwrittenShare = 1000;

constexpr uint32_t kGapSteps = 4;  // codes per octave of a gap
constexpr uint32_t kGapCodeMax = 127;
constexpr uint32_t kGapClasses = kReuseClasses / 2;
constexpr uint32_t kGapStepsPerClass = 2 * kGapSteps;  // 1, 4, 16 .. 4,096 s and more
constexpr uint32_t kBucketsPerOctave = 2;
constexpr uint32_t kFirstBuckets = 2;  // of a second each: idle times are whole seconds

// What is presumed of every class, as if so many blocks of it had been seen: reuse that becomes
// rarer with idle time, by which alone the least recent would leave first.
constexpr double kPresumedBlocks = 30;
constexpr double kPresumedUses = 0.3;
constexpr double kPresumedRecency_s = 5;
constexpr double kEventsKept = 1 << 20;

// steps x log2(value), rounded down, with straight lines between powers of two.
uint32_t Log2Steps(uint32_t value, uint32_t steps) {
  const auto octave = static_cast<uint32_t>(std::bit_width(value)) - 1;
  return steps * octave + static_cast<uint32_t>((uint64_t{value} * steps >> octave) - steps);
}

// Idle time at which a bucket begins.
double BucketBegin(uint32_t bucket) {
  const uint32_t steps = bucket + kBucketsPerOctave;
  const double octave = std::exp2(steps / kBucketsPerOctave);
  return octave * (1 + double(steps % kBucketsPerOctave) / kBucketsPerOctave) - kFirstBuckets;
}

}  // namespace

ReuseHistory UsedAgain(ReuseHistory before, uint32_t idle_s) {
  const uint32_t code = std::min(kGapCodeMax, 1 + Log2Steps(std::max(idle_s, 1u), kGapSteps));
  // A quarter of the way: in logarithms, so one odd gap among many does not rule.
  const uint32_t mean = before.gap == 0 ? code : (3 * uint32_t{before.gap} + code + 2) / 4;
  return {.gap = static_cast<uint8_t>(mean & kGapCodeMax), .shared = before.shared};
}

uint32_t ReuseClassOf(ReuseHistory history) {
  const uint32_t gap =
      history.gap == 0
          ? 0
          : 1 + std::min(kGapClasses - 2, (uint32_t{history.gap} - 1) / kGapStepsPerClass);
  return 2 * gap + (history.shared ? 1 : 0);
}

uint32_t IdleBucketOf(uint32_t idle_s) {
  const uint32_t shifted = std::min(idle_s, UINT32_MAX - kFirstBuckets) + kFirstBuckets;
  return std::min(kIdleBuckets - 1, Log2Steps(shifted, kBucketsPerOctave) - kBucketsPerOctave);
}

EvictionPolicy::EvictionPolicy() {
  for (uint32_t c = 0; c < kReuseClasses; ++c) Recompute(c);
}

// In straight lines from bucket to bucket: else all within one would tie, and which of them leaves
// were left to chance.
double EvictionPolicy::RateAt(uint32_t reuse_class, uint32_t idle_s) const {
  const uint32_t bucket = IdleBucketOf(idle_s);
  const double here = rates_[reuse_class][bucket].load(std::memory_order_relaxed);
  const double begin = BucketBegin(bucket);
  const double next = bucket + 1 < kIdleBuckets
                          ? rates_[reuse_class][bucket + 1].load(std::memory_order_relaxed)
                          : here;
  const double share = std::min(1.0, (idle_s - begin) / (BucketBegin(bucket + 1) - begin));
  return here + (next - here) * share;
}

double EvictionPolicy::Worth(const EvictionCandidate& candidate) const {
  const double hits_per_s = RateAt(ReuseClassOf(candidate.history), candidate.idle_s);
  const uint32_t tokens = candidate.tokens == 0 ? kTokensUnknown : candidate.tokens;
  const bool waits = candidate.unwritten && candidate.idle_s < kSpill_s &&
                     spilling_.load(std::memory_order_relaxed);
  const double cost = tokens * (candidate.elsewhere ? kLoadShare : waits ? kUnwrittenShare : 1.0);
  return hits_per_s * cost / static_cast<double>(std::max<uint64_t>(candidate.bytes.value(), 1));
}

void EvictionPolicy::Learn(const ReuseCounts& since) {
  for (uint32_t c = 0; c < kReuseClasses; ++c) {
    for (uint32_t b = 0; b < kIdleBuckets; ++b) {
      again_[c][b] += static_cast<double>(since.again[c][b]);
      forgotten_[c][b] += static_cast<double>(since.forgotten[c][b]);
      events_ += static_cast<double>(since.again[c][b] + since.forgotten[c][b]);
    }
  }
  while (events_ > 2 * kEventsKept) {
    for (auto* histogram : {&again_, &forgotten_}) {
      for (Curve& curve : *histogram) {
        for (double& count : curve) count /= 2;
      }
    }
    events_ /= 2;
  }
  for (uint32_t c = 0; c < kReuseClasses; ++c) Recompute(c);
}

void EvictionPolicy::Recompute(uint32_t reuse_class) {
  const Curve& again = again_[reuse_class];
  const Curve& forgotten = forgotten_[reuse_class];
  Curve seconds{}, hazard{};  // of a bucket: its width; uses a second of those who are idle so long
  double later = 0;           // who are idle for longer
  for (uint32_t b = kIdleBuckets; b-- > 0;) {
    seconds[b] = BucketBegin(b + 1) - BucketBegin(b);
    const double here = again[b] + forgotten[b];
    const double presumed = kPresumedUses / (BucketBegin(b) + kPresumedRecency_s) * seconds[b];
    hazard[b] = (again[b] + kPresumedBlocks * presumed) /
                ((later + here / 2 + kPresumedBlocks) * seconds[b]);
    later += here;
  }
  Curve rates{};
  for (uint32_t from = 0; from < kIdleBuckets; ++from) {
    double idle = 1, hits = 0, stay = 0, best = 0;  // idle: the share that is so still
    for (uint32_t b = from; b < kIdleBuckets; ++b) {
      const double used = -idle * std::expm1(-hazard[b] * seconds[b]);
      hits += used;
      stay += used / hazard[b];
      idle -= used;
      best = std::max(best, hits / stay);
    }
    rates[from] = best;
  }
  // Of a class the least recent leaves first, even where a use comes nearer with time: else the
  // pieces of one chain would leave one by one.
  for (uint32_t b = kIdleBuckets; b-- > 0;) {
    if (b + 1 < kIdleBuckets) rates[b] = std::max(rates[b], rates[b + 1]);
    rates_[reuse_class][b].store(rates[b], std::memory_order_relaxed);
  }
}

}  // namespace larder
