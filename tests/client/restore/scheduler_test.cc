// The scheduler's promises, checked by a ledger over random drivers, and its decisions in cases
// that can be counted.
#include "client/restore/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/client/restore/hand_driven.h"
#include "tests/client/restore/ledger.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

using testing::Costs;
using testing::HandDriven;
using testing::kLayers;
using testing::Ledger;
using testing::LedgerOptions;
using testing::Spec;

// Draws 32-bit numbers of the type uint32_t.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  uint32_t operator()() { return static_cast<uint32_t>(random_()); }
  bool Chance(double share) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < share;
  }

 private:
  std::mt19937 random_;
};

struct Shape {
  bool layers = false, abandons = false, overlaps = false;
  uint16_t ranks = 1, stages = 1, channels = 1;
  double holes = 0;
  uint32_t block_tokens = 128, chunk_tokens = 256;
  bool depths = false;
  uint32_t cut_tokens = 0;
  bool have = false;  // the engine has some blocks already
};

RequestSpec DrawSpec(Draw& random, uint64_t id, const Shape& shape) {
  const bool plain = shape.stages == 1 && random() % 10 == 0;  // nothing is stored
  const uint32_t blocks = plain ? 0 : 1 + random() % 24;
  RequestSpec spec = Spec(id, blocks, shape.block_tokens, shape.chunk_tokens);
  spec.cut_tokens = shape.cut_tokens;
  if (shape.have && blocks > 0)
    spec.have_tokens = random() % spec.tokens / shape.cut_tokens * shape.cut_tokens;
  if (plain || (shape.stages == 1 && random() % 2 == 0)) spec.suffix_tokens = 1 + random() % 500;
  spec.stages.clear();
  for (uint16_t s = 0; s < shape.stages; ++s) {
    StageSpec stage;
    stage.layers = {static_cast<uint16_t>(kLayers * s / shape.stages),
                    static_cast<uint16_t>(kLayers * (s + 1) / shape.stages)};
    for (uint16_t r = 0; r < shape.ranks; ++r) {
      Copy copy{std::vector<ChannelId>(blocks), 1e5};
      for (ChannelId& channel : copy.channel_of_block) {
        channel = random.Chance(shape.holes)
                      ? ChannelId::kNowhere
                      : static_cast<ChannelId>(1 + random() % shape.channels);
      }
      stage.ranks.push_back(copy);
    }
    if (s > 0) stage.boundary = {std::vector(blocks, ChannelId{1}), 1e4};
    spec.stages.push_back(stage);
  }
  if (shape.depths) {
    const uint32_t chunk = std::max(shape.block_tokens, shape.chunk_tokens);
    for (uint32_t i = 0; i * chunk < spec.tokens; ++i)
      spec.depths.push_back(static_cast<uint16_t>(random() % (kLayers + 1)));
    std::sort(spec.depths.rbegin(), spec.depths.rend());
  }
  return spec;
}

std::unique_ptr<Policy> AnyPolicy(uint32_t draw) {
  switch (draw % 4) {
    case 0:
      return FinishFirst();
    case 1:
      return AlgorithmOne();
    case 2:
      return OldestFirst();
    default:
      return TakeTurns();
  }
}

LedgerOptions DrawOptions(Draw& random, const Shape& shape) {
  LedgerOptions options;
  options.scheduler.engine = {shape.layers, shape.abandons, random() % 2 == 0, shape.overlaps};
  options.scheduler.trace_capacity = random() % 2 * 100;
  options.in_flight = 1 + random() % 4;
  if (random() % 3 == 0) options.budget = 200;
  if (random() % 3 == 0) options.refuses = 0.2;
  if (random() % 2 == 0) {
    options.fails = 0.1;
    options.gone = 0.05;
    options.stalls = 0.2;
  }
  return options;
}

constexpr Shape kShapes[] = {
    {},
    {.layers = true},
    {.abandons = true},
    {.layers = true, .abandons = true, .overlaps = true},
    {.layers = true, .abandons = true, .channels = 3},
    {.layers = true, .abandons = true, .overlaps = true, .channels = 2, .holes = 0.1},
    {.channels = 3, .holes = 0.2},
    {.layers = true, .ranks = 4, .channels = 3},
    {.layers = true, .abandons = true, .ranks = 2, .channels = 2, .holes = 0.05},
    {.layers = true, .abandons = true, .stages = 3, .channels = 2},
    {.stages = 2},
    {.block_tokens = 512, .chunk_tokens = 128},
    {.layers = true, .stages = 2, .block_tokens = 256, .chunk_tokens = 128},
    {.layers = true, .abandons = true, .overlaps = true, .block_tokens = 256, .chunk_tokens = 256},
    {.block_tokens = 32, .cut_tokens = 64},
    {.channels = 2, .holes = 0.1, .block_tokens = 32, .cut_tokens = 64},
    {.channels = 2, .holes = 0.1, .block_tokens = 32, .cut_tokens = 32},
    {.abandons = true,
     .ranks = 2,
     .channels = 2,
     .holes = 0.05,
     .block_tokens = 32,
     .cut_tokens = 64},
    {.block_tokens = 32, .cut_tokens = 32, .have = true},
    {.ranks = 2, .channels = 2, .holes = 0.1, .block_tokens = 32, .cut_tokens = 32, .have = true},
    {.layers = true, .depths = true},
    {.layers = true, .abandons = true, .channels = 2, .holes = 0.1, .depths = true},
};

TEST(Scheduler, KeepsItsPromisesUnderRandomEvents) {
  const uint32_t seed = testing::TestSeed();
  for (uint64_t run = 0; run < testing::Scaled(6000); ++run) {
    Draw random(static_cast<uint32_t>(seed + run));
    const size_t which = run % std::size(kShapes);
    const Shape& shape = kShapes[which];
    SCOPED_TRACE(::testing::Message()
                 << "LARDER_TEST_SEED=" << seed << ", run " << run << ", shape " << which);
    const LedgerOptions options = DrawOptions(random, shape);
    Ledger ledger(random(), options, Costs(std::pow(10, static_cast<int>(random() % 5) - 4)),
                  AnyPolicy(random()), shape.stages, shape.channels);
    const uint64_t requests = 1 + random() % 5;
    for (uint64_t id = 1; id <= requests; ++id) {
      ledger.Add(DrawSpec(random, id, shape));
      for (uint32_t i = random() % 20; i > 0; --i) ASSERT_TRUE(ledger.Step());
    }
    if (random() % 4 == 0) ledger.Cancel(RequestId{1});
    ledger.RunToEnd();
    ASSERT_FALSE(HasFailure());
  }
}

TEST(Scheduler, OneChannelWithoutFailuresMakesAStaircase) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    LedgerOptions options;
    options.scheduler.engine = {.splits_layers = true, .abandons_steps = true};
    options.in_flight = 1;  // so that loads end in their order
    // With one load in flight, loads end in their order.
    Ledger ledger(seed, options, Costs(), FinishFirst(), 1, 1);
    ledger.Add(Spec(1, 1 + seed % 30));
    ledger.RunToEnd();
    const auto& depths = ledger.outcomes().at(0).stages.at(0).depths;
    EXPECT_TRUE(std::is_sorted(depths.rbegin(), depths.rend())) << seed;
  }
}

TEST(Scheduler, AnEngineOfWholeChunksMeetsAtTheirBoundaries) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    LedgerOptions options;
    options.fails = 0.1;
    Ledger ledger(seed, options, Costs(), FinishFirst(), 1, 1);
    ledger.Add(Spec(1, 1 + seed % 40, 64, 256));
    ledger.RunToEnd();
    const auto& depths = ledger.outcomes().at(0).stages.at(0).depths;
    for (size_t b = 0; b < depths.size(); ++b) {
      EXPECT_EQ(depths[b], depths[b / 4 * 4]) << "block " << b << ", seed " << seed;
      EXPECT_TRUE(depths[b] == 0 || depths[b] == kLayers);
    }
  }
}

TEST(Scheduler, EndsByComputingAloneWhenEveryLoadStalls) {
  LedgerOptions options;
  options.stalls = 1;
  Ledger ledger(1, options, Costs(), FinishFirst(), 1, 1);
  ledger.Add(Spec(1, 20));
  ledger.RunToEnd();
  for (const uint16_t depth : ledger.outcomes().at(0).stages.at(0).depths)
    EXPECT_EQ(depth, kLayers);
  EXPECT_GT(ledger.late(), 0u);
}

TEST(Scheduler, ABlockThatIsGoneIsComputed) {
  LedgerOptions options;
  options.gone = 1;
  Ledger ledger(1, options, Costs(1), FinishFirst(), 1, 1);
  ledger.Add(Spec(1, 8));
  ledger.RunToEnd();
  EXPECT_EQ(ledger.outcomes().at(0).bytes_loaded, 0);
}

TEST(Scheduler, ARequestWithoutKvAndActivationsIsReportedLost) {
  LedgerOptions options;
  options.gone = 1;
  Ledger ledger(1, options, Costs(), FinishFirst(), 2, 1);
  Draw random(1);
  ledger.Add(DrawSpec(random, 1, {.stages = 2}));
  ledger.RunToEnd();
  EXPECT_TRUE(ledger.outcomes().at(0).lost);
}

// ---- Decisions that can be counted.

TEST(Policy, TheShortestRequestComesFirstButNoneWaitsForever) {
  const auto policy = FinishFirst();
  const auto key = [&](double left_s, double waited_s) {
    return policy->ComputeKey({.waited_s = waited_s, .remaining_s = left_s});
  };
  EXPECT_LT(key(1, 0), key(2, 0));
  EXPECT_LT(key(2, 10), key(2, 0));
  EXPECT_LT(key(0.05, 0), key(60, 600)) << "a short request must not wait for a long one";
  EXPECT_LT(key(1.1, 10), key(1, 0))
      << "a short request waits for one of similar length that has waited";
  EXPECT_LT(key(60, 6000), key(0.05, 0)) << "a long request must not wait forever";
  EXPECT_LT(key(60, 7000), key(50, 6000));
  EXPECT_LE(key(0, 0), key(1e-9, 0)) << "the key of a finished request must be a number";
}

TEST(Scheduler, ComputesFromTheHeadAndLoadsFromTheTail) {
  HandDriven bench({}, 0.01, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 20), 0).ok());
  const auto step = bench.scheduler.NextCompute(0, 1 << 20, 0);
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->tokens, (TokenRange{0, 256}));
  EXPECT_EQ(step->layers, (StageLayers{0, kLayers}));
  EXPECT_EQ(bench.Loads().at(0).block, 19u);
  EXPECT_EQ(bench.Loads().at(0).block, 18u);
}

TEST(Scheduler, DoesNotLoadIfComputingFinishesSooner) {
  HandDriven bench({}, 0.001, 1e3);  // a block takes 100 s
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 4), 0).ok());
  ASSERT_TRUE(bench.scheduler.NextCompute(0, 1 << 20, 0).has_value());
  EXPECT_TRUE(bench.Loads().empty());
}

TEST(Scheduler, DoesNotComputeIfLoadingFinishesSooner) {
  HandDriven bench({}, 100, 1e9);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 4), 0).ok());
  EXPECT_FALSE(bench.scheduler.NextCompute(0, 1 << 20, 0).has_value());
  EXPECT_EQ(bench.Loads().size(), 1u);
}

TEST(Scheduler, ABlockThatFailsOccasionallyIsStillLoaded) {
  SchedulerOptions options;
  options.engine.splits_layers = true;
  HandDriven bench(options, 1e3, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 1, 128, 128), 0).ok());
  int failed = 0;
  double now_s = 0;
  for (std::vector<Load> loads; !(loads = bench.Loads(now_s)).empty(); now_s += 1e-4) {
    bench.scheduler.OnLoadFailed(loads[0].id, LoadFailure::kTransient, now_s);
    ++failed;
    loads = bench.Loads(now_s);
    ASSERT_EQ(loads.size(), 1u) << "after " << failed;
    EXPECT_EQ(bench.scheduler.OnLoaded(loads[0].id, now_s), Landing::kPlace);
  }
  EXPECT_EQ(failed, kLayers);
  EXPECT_EQ(bench.scheduler.TakeOutcomes().at(0).stages[0].depths[0], 0);
}

TEST(Scheduler, LateLoadsLowerTheLearntRateOfTheChannel) {
  HandDriven bench({}, 1e3, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 8), 0).ok());
  const double before_s = bench.scheduler.costs().LoadSeconds(ChannelId{1}, 1e5);
  double now_s = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(bench.Loads(now_s).size(), 1u);
    now_s = bench.scheduler.NextDeadline();
    bench.scheduler.OnTime(now_s);
    EXPECT_EQ(bench.scheduler.TakeCancelledLoads().size(), 1u);
  }
  EXPECT_GT(bench.scheduler.costs().LoadSeconds(ChannelId{1}, 1e5), 3 * before_s);
}

TEST(Scheduler, LoadsThatOvertakeAStalledOneDoNotGiveItMoreTime) {
  HandDriven bench({}, 1e3, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 40), 0).ok());
  const LoadId stalled = bench.Loads(0).at(0).id;
  std::vector<LoadId> given;
  for (int i = 0; i < 8; ++i) given.push_back(bench.Loads(0).at(0).id);
  const double deadline_s = bench.scheduler.NextDeadline();
  for (size_t i = 0; i < given.size(); ++i) {
    const double now_s = deadline_s * static_cast<double>(i + 1) / 10;
    EXPECT_EQ(bench.scheduler.OnLoaded(given[i], now_s), Landing::kPlace);
    EXPECT_LE(bench.scheduler.NextDeadline(), deadline_s);
  }
  bench.scheduler.OnTime(deadline_s);
  EXPECT_EQ(bench.scheduler.TakeCancelledLoads(), std::vector<LoadId>{stalled});
}

// This also holds for an engine that can neither abandon nor split steps: its waiting time would
// add to the computing time.
TEST(Scheduler, WaitsOnlyAWhileForAnOverdueLoad) {
  HandDriven bench({}, 0.05, 1e8);  // four chunks; a block is loaded in a millisecond
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 8), 0).ok());
  ASSERT_EQ(bench.Loads(0).size(), 1u);
  EXPECT_FALSE(bench.scheduler.NextCompute(0, 1 << 20, 0.005).has_value());
  double now_s = 0.005;
  while (!bench.scheduler.NextCompute(0, 1 << 20, now_s).has_value()) {
    now_s = bench.scheduler.NextWakeup(now_s);
    ASSERT_LT(now_s, bench.scheduler.NextDeadline());
  }
  EXPECT_LT(now_s, 0.02);
}

TEST(Scheduler, DoesNotBeginALoadThatWouldEndTooLate) {
  HandDriven bench({}, 1, 1e3);
  RequestSpec spec = Spec(1, 4);
  spec.deadline_s = 50;
  ASSERT_TRUE(bench.scheduler.Add(spec, 0).ok());
  EXPECT_TRUE(bench.Loads().empty());
}

TEST(Scheduler, TheSuffixComesBeforeAnyPrefix) {
  HandDriven bench({}, 0.01, 1e9);
  RequestSpec first = Spec(1, 1, 128, 128);
  first.suffix_tokens = 100;
  ASSERT_TRUE(bench.scheduler.Add(first, 0).ok());
  const auto loads = bench.Loads();
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_EQ(bench.scheduler.OnLoaded(loads[0].id, 0.001), Landing::kPlace);
  ASSERT_TRUE(bench.scheduler.Add(Spec(2, 1, 128, 128), 0.001).ok());
  const auto step = bench.scheduler.NextCompute(0, 64, 0.001);
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->kind, StepKind::kSuffix);
  EXPECT_EQ(step->tokens, (TokenRange{128, 192}));
}

TEST(Scheduler, AnOverlappedSuffixKeepsToTheBudget) {
  SchedulerOptions options;
  options.engine.splits_layers = options.engine.overlaps_suffix = true;
  HandDriven bench(options, 100, 1e9);
  RequestSpec spec = Spec(1, 4);
  spec.suffix_tokens = 256;
  ASSERT_TRUE(bench.scheduler.Add(spec, 0).ok());
  const uint32_t budget = 2 * spec.suffix_tokens / kLayers;
  uint16_t through = 0;
  double now_s = 0;
  for (int i = 0; i < 10'000 && through < kLayers; ++i) {
    if (const auto step = bench.scheduler.NextCompute(0, budget, now_s)) {
      ASSERT_EQ(step->kind, StepKind::kSuffix);
      EXPECT_EQ(step->layers.begin, through);
      EXPECT_LE(step->layers.count(), 2);
      through = step->layers.end;
      bench.scheduler.OnComputed(step->id, now_s += 1e-3);
    }
    for (int ahead = 0; ahead < 16; ++ahead) {  // of the engine's computing
      for (const Load& load : bench.Loads(now_s))
        EXPECT_EQ(bench.scheduler.OnLoaded(load.id, now_s += 1e-4), Landing::kPlace);
    }
  }
  EXPECT_EQ(through, kLayers);
}

// Cake's order: a request without stored blocks is prefilled first, and the rest of the step
// restores another.
TEST(Scheduler, AStepIsFilledWithPrefillFirstAndThenARestore) {
  HandDriven bench({}, 0.01, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 20), 0).ok());
  RequestSpec other = Spec(2, 0);
  other.suffix_tokens = 300;
  ASSERT_TRUE(bench.scheduler.Add(other, 0).ok());
  uint32_t budget = 556;
  std::vector<ComputeStep> steps;
  while (const auto step = bench.scheduler.NextCompute(0, budget, 0)) {
    budget -= step->tokens.end - step->tokens.begin;
    steps.push_back(*step);
  }
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].request, RequestId{2});
  EXPECT_EQ(steps[0].tokens, (TokenRange{0, 300}));
  EXPECT_EQ(steps[1].request, RequestId{1});
  EXPECT_EQ(steps[1].tokens, (TokenRange{0, 256}));
  const double before_s = bench.scheduler.costs().ComputeSeconds({0, 256});
  for (const ComputeStep& step : steps) bench.scheduler.OnComputed(step.id, 0.1, 0);
  EXPECT_EQ(bench.scheduler.costs().ComputeSeconds({0, 256}), before_s);
  const std::vector<Outcome> outcomes = bench.scheduler.TakeOutcomes();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].request, RequestId{2});
}

// The same through NextStep, which also keeps the step short enough for requests that decode.
TEST(Scheduler, AStepBesideDecodingIsShortAndItsDurationIsLearnt) {
  HandDriven bench({}, 0.01, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 20), 0).ok());
  RequestSpec other = Spec(2, 0);
  other.suffix_tokens = 200;
  ASSERT_TRUE(bench.scheduler.Add(other, 0).ok());
  const CostModel& costs = bench.scheduler.costs();
  const double room_s = 1.3 * costs.ComputeSeconds({0, 256});
  const auto steps = bench.scheduler.NextStep(0, {512, 8, room_s, 16}, 0);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].request, RequestId{2});
  EXPECT_EQ(steps[0].tokens, (TokenRange{0, 200}));
  EXPECT_EQ(steps[1].request, RequestId{1});
  EXPECT_LT(steps[1].tokens.end, 256u);
  EXPECT_LE(steps[0].estimate_s + steps[1].estimate_s, room_s);
  EXPECT_TRUE(bench.scheduler.NextStep(0, {512, 8, 1e-9, 16}, 0).empty());
  const double before_s = costs.ComputeSeconds({0, 256});
  bench.scheduler.OnStepComputed(steps, 8, 1, 3 * room_s);
  EXPECT_GT(costs.ComputeSeconds({0, 256}), before_s);
}

TEST(Scheduler, BytesOfACancelledRequestAreDropped) {
  HandDriven bench({}, 0.01, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 20), 0).ok());
  const Load load = bench.Loads().at(0);
  bench.scheduler.Cancel(RequestId{1}, 0);
  EXPECT_EQ(bench.scheduler.TakeCancelledLoads(), std::vector<LoadId>{load.id});
  EXPECT_EQ(bench.scheduler.OnLoaded(load.id, 1), Landing::kDrop);
  EXPECT_TRUE(bench.scheduler.TakeOutcomes().at(0).cancelled);
}

TEST(Scheduler, TracesEveryDecision) {
  SchedulerOptions options;
  options.trace_capacity = 100;
  HandDriven bench(options, 0.01, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 20), 0).ok());
  ASSERT_TRUE(bench.scheduler.NextCompute(0, 1 << 20, 0).has_value());
  (void)bench.Loads();
  std::vector<DecisionKind> kinds;
  bench.scheduler.trace().ForEach(
      [&](const Decision& decision) { kinds.push_back(decision.kind); });
  EXPECT_EQ(kinds, (std::vector<DecisionKind>{DecisionKind::kCompute, DecisionKind::kLoad}));
}

TEST(Scheduler, TheTokenBudgetKeepsTheStepShort) {
  const HandDriven bench({}, 0.01, 1e8);
  const uint32_t tokens = bench.scheduler.TokenBudget(0.02, 8, 4096, 16);
  EXPECT_GT(tokens, 0u);
  EXPECT_EQ(tokens % 16, 0u);
  const CostModel& costs = bench.scheduler.costs();
  EXPECT_LE(costs.ComputeSeconds({4096, 4096 + tokens}), 0.02);
  EXPECT_GT(costs.ComputeSeconds({4096, 4096 + tokens + 64}), 0.02 - 0.001);
  EXPECT_EQ(bench.scheduler.TokenBudget(1e-6, 8, 0, 16), 0u);
}

TEST(Scheduler, RefusesInvalidRequests) {
  HandDriven bench({}, 0.01, 1e8);
  const auto refused = [&](const auto& spoil) {
    RequestSpec spec = Spec(1, 4);
    spoil(&spec);
    return bench.scheduler.Add(spec, 0).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](RequestSpec* spec) { spec->id = {}; }));
  EXPECT_TRUE(refused([](RequestSpec* spec) { *spec = Spec(1, 0); }));
  EXPECT_TRUE(refused([](RequestSpec* spec) { spec->tokens += 1; }));
  EXPECT_TRUE(refused([](RequestSpec* spec) { spec->chunk_tokens = 200; }));
  EXPECT_TRUE(refused([](RequestSpec* spec) { spec->stages.clear(); }));
  EXPECT_TRUE(refused([](RequestSpec* spec) { spec->stages[0].layers = {0, 7}; }));
  EXPECT_TRUE(
      refused([](RequestSpec* spec) { spec->stages[0].ranks[0].channel_of_block.pop_back(); }));
  EXPECT_TRUE(refused([](RequestSpec* spec) { spec->depths = {1, 2}; }));
  EXPECT_TRUE(refused([](RequestSpec* spec) { spec->depths = {2}; }));
  ASSERT_TRUE(bench.scheduler.Add(Spec(1, 4), 0).ok());
  EXPECT_EQ(bench.scheduler.Add(Spec(1, 4), 0).code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace larder
