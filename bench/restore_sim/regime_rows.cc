// Rows 3, 4, 7 and 13: one prefix at a time, in regimes drawn from a seed.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "bench/restore_sim/plot_file.h"
#include "bench/restore_sim/regimes.h"
#include "bench/restore_sim/row.h"
#include "client/restore/staircase.h"

namespace larder::bench {
namespace {

SchedulerOptions Options() {
  SchedulerOptions options;
  options.engine = {.splits_layers = true, .abandons_steps = true};
  options.patience_s_min = 1e-3;  // the smallest regimes last a few milliseconds
  return options;
}

RunResult Restore(const Regime& regime, SchedulerOptions options = Options()) {
  Scheduler scheduler(options, CostModel(regime.profile), FinishFirst());
  return Run(regime.machine, {{0, regime.spec}}, scheduler);
}

bool HasHole(const Regime& regime) { return std::isinf(MakePlan(regime.truth).load_only_s); }

// ---- row 3

struct Ratios {
  std::vector<double> values = {};
  double worst = 0;
  uint64_t seed = 0;  // of the worst
  void Take(double value, uint64_t of_seed) {
    values.push_back(value);
    if (value <= worst) return;
    worst = value;
    seed = of_seed;
  }
};

// Two seeds each: even seeds give tiny regimes, which are compared with the best of all staircases;
// odd ones are compared with the bound.
struct RandomResult {
  Ratios optimum = {}, bound = {}, single = {}, filled = {};
};

RandomResult RunRandom(uint64_t first_seed, uint64_t regimes, double second_channel) {
  RandomResult result;
  for (uint64_t seed = first_seed; seed < first_seed + regimes; ++seed) {
    const bool tiny = seed % 2 == 0;
    const Regime regime = DrawRegime(seed, {.second_channel = second_channel, .tiny = tiny});
    const double seconds = Restore(regime).outcomes[0].restored_s;
    if (tiny) result.optimum.Take(seconds / BestStaircase(regime.truth)->seconds, seed);
    if (!tiny) result.bound.Take(seconds / LowerBound(regime.truth), seed);
    // A regime with a hole cannot be restored by loading alone.
    const bool hole = HasHole(regime);
    const double better_s = std::min(regime.compute_only_s, regime.load_only_s);
    result.single.Take(seconds / (hole ? regime.compute_only_s : better_s), seed);
    if (hole) result.filled.Take(seconds / better_s, seed);
  }
  return result;
}

// `part` is a part of the figures' names.
void ReportRandom(Reporter& report, const std::string& part, const RandomResult& result) {
  const std::string name = "restore_sim_random_" + part;
  const auto worst = [](const Ratios& ratios) {
    return absl::StrFormat("median %.4f, worst %.4f, seed %d", Median(ratios.values), ratios.worst,
                           ratios.seed);
  };
  report.Bar(name + "p99", Quantile(result.optimum.values, 0.99), Sense::kAtMost, 1.05);
  report.Bar(name + "max", result.optimum.worst, Sense::kAtMost, 1.15);
  report.Note(worst(result.optimum));
  report.Bar(name + "bound_p99", Quantile(result.bound.values, 0.99), Sense::kAtMost, 1.10);
  report.Note(worst(result.bound));
  report.Bar(name + "better_single", result.single.worst, Sense::kAtMost, 1.01);
  report.Note(absl::StrFormat(
      "worst is seed %d; %d regimes have holes: over loading what is stored and computing "
      "the rest after it p99 %.4f, worst %.4f",
      result.single.seed, result.filled.values.size(), Quantile(result.filled.values, 0.99),
      result.filled.worst));
}

void RandomRegimes(Reporter& report) {
  const uint64_t regimes = report.quick() ? 1'000 : 10'000, held_out = report.seed_base();
  report.Note(absl::StrFormat(
      "%d regimes; half of at most 12 chunks and 6 layers, against the best of all staircases; "
      "the others against a bound that no schedule passes",
      regimes));
  const RandomResult result = RunRandom(0, regimes, 0);
  ReportRandom(report, "", result);
  report.Note(absl::StrFormat("the same from seed %d, on which nothing was tuned", held_out));
  ReportRandom(report, "held_out_", RunRandom(held_out, regimes, 0));
  report.Note("blocks on two channels, whose rates differ by up to five times");
  ReportRandom(report, "two_channels_", RunRandom(held_out + regimes, regimes, 1));
  if (report.plots().empty()) return;
  const Plot plot{"Random steady regimes",
                  "time / yardstick",
                  "share of regimes",
                  false,
                  false,
                  {Distribution("over the optimum", result.optimum.values),
                   Distribution("over the bound", result.bound.values)}};
  report.Note(Write(plot, report.plots(), "random").ToString());
}

std::vector<std::string> RandomFigures() {
  std::vector<std::string> figures;
  for (const char* part : {"", "held_out_", "two_channels_"}) {
    for (const char* what : {"p99", "max", "bound_p99", "better_single"})
      figures.push_back(std::string("restore_sim_random_") + part + what);
  }
  return figures;
}

// ---- row 4

// Shorter regimes are left out: a single stalled load would dominate them, as no deadline is below
// a millisecond.
constexpr double kVolatileSecondsMin = 0.05;

// The bound's model knows which blocks are gone and computes their chunks; the scheduler is not
// told.
void LoseBlocks(const std::vector<bool>& gone, Regime* regime) {
  RequestSpec known = regime->spec;
  auto& channels = known.stages[0].ranks[0].channel_of_block;
  for (size_t b = 0; b < gone.size(); ++b) {
    if (gone[b]) channels[b] = ChannelId::kNowhere;
  }
  regime->truth = Truth(regime->machine, known, 0);
}

// The speeds of engine and link change by up to ten times every few blocks; some loads fail, some
// never end.
Regime DrawVolatile(uint64_t seed, double gone_share) {
  Regime regime = DrawRegime(seed, {.tokens_min = 2048, .holes = 0});
  std::mt19937_64 random(seed + 99);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const double chunks = static_cast<double>(regime.truth.chunks.size());
  const auto wander = [&](double total_s) {
    Speed speed;
    const double every_s = std::max(total_s / chunks, 1e-9) * uniform(2, 6);
    double at_s = 0;
    for (int i = 0; i < 400; ++i, at_s += every_s * uniform(0.3, 1.7)) {
      speed.From(at_s, std::exp(uniform(-0.5, 0.5) * std::log(10.0)));
    }
    return speed;
  };
  regime.machine.compute_speed = wander(regime.compute_only_s);
  for (size_t i = 0; i < regime.machine.rates.size(); ++i) {
    regime.machine.channel_speeds.push_back(wander(regime.load_only_s));
  }
  // Of 100 loads of a whole block, 2 fail and 1 stalls; loads of a part of it do so proportionally
  // less often.  Blocks that are gone fail every load.
  std::vector<bool> gone(regime.spec.tokens / regime.spec.block_tokens);
  for (auto&& block : gone) block = uniform(0, 1) < gone_share;
  LoseBlocks(gone, &regime);
  regime.machine.fate = [seed, gone = std::move(gone),
                         layers = static_cast<double>(regime.machine.layers)](const Load& load) {
    if (gone[load.block]) return Fate::kGone;
    const double share = load.layers.count() / layers;
    const double draw =
        static_cast<double>(std::mt19937_64(seed * 1'000'003 + load.id.value)() % 1'000'000) / 1e6;
    if (draw < 0.02 * share) return Fate::kFails;
    return draw < 0.03 * share ? Fate::kStalls : Fate::kLands;
  };
  return regime;
}

double ClairvoyantBound(const Regime& regime) {
  const Machine& machine = regime.machine;
  return LowerBound(regime.truth,
                    {[&](double seconds) { return machine.compute_speed.Work(0, seconds); },
                     [&](ChannelId channel, double seconds) {
                       return machine.channel_speeds[static_cast<size_t>(channel) - 1].Work(
                           0, seconds);
                     }});
}

struct VolatileResult {
  Ratios ratios = {};
  // As in RunResult; the share is that of the latter in the restore.
  double stalled_s = 0, stalled_since_given_s = 0, stalled_share = 0;
};

VolatileResult RunVolatile(uint64_t first_seed, uint64_t regimes, double gone_share) {
  VolatileResult result;
  for (uint64_t seed = first_seed; result.ratios.values.size() < regimes; ++seed) {
    const Regime regime = DrawVolatile(seed, gone_share);
    const double bound_s = ClairvoyantBound(regime);
    if (bound_s < kVolatileSecondsMin) continue;
    const RunResult run = Restore(regime);
    result.ratios.Take(run.outcomes[0].restored_s / bound_s, seed);
    result.stalled_s = std::max(result.stalled_s, run.stalled_s);
    result.stalled_since_given_s =
        std::max(result.stalled_since_given_s, run.stalled_since_given_s);
    result.stalled_share =
        std::max(result.stalled_share, run.stalled_since_given_s / run.outcomes[0].restored_s);
  }
  return result;
}

void ReportVolatile(Reporter& report, const std::string& part, const VolatileResult& result) {
  const std::string name = "restore_sim_volatile_" + part;
  const Ratios& ratios = result.ratios;
  report.Bar(name + "median", Median(ratios.values), Sense::kAtMost, 1.10);
  report.Bar(name + "p99", Quantile(ratios.values, 0.99), Sense::kAtMost, 1.4);
  report.Note(absl::StrFormat("worst %.3f, seed %d", ratios.worst, ratios.seed));
}

void VolatileRegimes(Reporter& report) {
  const uint64_t regimes = report.quick() ? 300 : 2'000;
  const VolatileResult result = RunVolatile(0, regimes, 0);
  ReportVolatile(report, "", result);
  report.Note(
      absl::StrFormat("the same from seed %d, on which nothing was tuned", report.seed_base()));
  const VolatileResult held_out = RunVolatile(report.seed_base(), regimes, 0);
  ReportVolatile(report, "held_out_", held_out);
  report.Note("and one block in 100 is gone, which the bound knows beforehand");
  const VolatileResult gone = RunVolatile(report.seed_base() + 100 * regimes, regimes, 0.01);
  ReportVolatile(report, "gone_", gone);
  report.Bar("restore_sim_waits_beyond_deadline",
             std::max({result.stalled_s, held_out.stalled_s, gone.stalled_s}), Sense::kAtMost, 0,
             "s");
  report.Note(absl::StrFormat(
      "for a load that never ends, beyond the deadline that it had when its channel began it; "
      "beyond the one with which it was given, when loads ahead of it turned out slower, %.3f s, "
      "at most %.3f of that restore",
      std::max({result.stalled_since_given_s, held_out.stalled_since_given_s,
                gone.stalled_since_given_s}),
      std::max({result.stalled_share, held_out.stalled_share, gone.stalled_share})));
  if (report.plots().empty()) return;
  const Plot plot{"Volatile regimes",
                  "time / clairvoyant bound",
                  "share of regimes",
                  false,
                  false,
                  {Distribution("ours", result.ratios.values)}};
  report.Note(Write(plot, report.plots(), "volatile").ToString());
}

// ---- row 7

void Utilization(Reporter& report) {
  const uint64_t regimes = report.quick() ? 3'000 : 30'000;
  std::vector<double> compute, link;
  for (uint64_t seed = 1; seed < regimes; seed += 2) {
    const Regime regime = DrawRegime(seed, {});
    const double ratio = regime.compute_only_s / regime.load_only_s;
    if (ratio < 0.5 || ratio > 2 || regime.spec.tokens / regime.spec.block_tokens < 16) continue;
    const RunResult result = Restore(regime);
    compute.push_back(result.compute_busy_s[0] / result.end_s);
    link.push_back(result.channel_busy_s[0] / result.end_s);
  }
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  report.Note(absl::StrFormat("%d regimes; the mean of all, and the hundredth that is least busy",
                              compute.size()));
  const auto show = [&](const std::string& name, const std::vector<double>& values) {
    report.Bar(name, mean(values), Sense::kAtLeast, 0.9);
    report.Bar(name + "_p01", Quantile(values, 0.01), Sense::kAtLeast, 0.9);
    report.Note(absl::StrFormat("median %.3f", Median(values)));
  };
  show("restore_sim_utilization_compute", compute);
  show("restore_sim_utilization_link", link);
}

// ---- row 13

Regime WithSuffix(Regime regime, double suffix_s) {
  const ComputeCost& cost = regime.machine.compute;
  const double p = regime.spec.tokens, slope = cost.linear_s + cost.quadratic_s * p;
  const double room_s = std::max(suffix_s - cost.fixed_s, 0.0);
  const double tokens =
      2 * room_s / (slope + std::sqrt(slope * slope + 2 * cost.quadratic_s * room_s));
  regime.spec.suffix_tokens = std::max(1u, static_cast<uint32_t>(tokens));
  return regime;
}

double SuffixSeconds(const Regime& regime) {
  return regime.machine.compute.Seconds(
      {regime.spec.tokens, regime.spec.tokens + regime.spec.suffix_tokens});
}

double FirstToken(const Regime& regime, bool overlaps) {
  SchedulerOptions options = Options();
  options.engine.overlaps_suffix = overlaps;
  return Restore(regime, options).outcomes[0].first_token_s;
}

// Computing takes as long as loading; the suffix takes half as long as either.
Regime BalancedRegime() {
  Regime regime = DrawRegime(1, {});
  regime.machine.compute = {0, 1e-4, 0};
  regime.machine.layers = 32;
  regime.machine.rates = {1e9};
  RequestSpec& spec = regime.spec;
  spec.tokens = 16'384;
  spec.block_tokens = 128;
  spec.chunk_tokens = 512;
  spec.stages = {{{0, 32}, {{std::vector(spec.tokens / 128, ChannelId{1}), 128 * 1e5}}}};
  std::mt19937_64 random(1);
  regime.profile = WrongProfile(regime.machine, 0.3, random);
  Complete(&regime);
  return WithSuffix(std::move(regime), regime.compute_only_s / 2);
}

struct SuffixResult {
  Ratios ratios = {};
  std::vector<double> gains = {};
};

SuffixResult RunSuffixes(uint64_t first_seed, uint64_t regimes) {
  SuffixResult result;
  for (uint64_t seed = first_seed + 1; result.ratios.values.size() < regimes; seed += 2) {
    Regime regime = DrawRegime(seed, {.tokens_min = 2048, .holes = 0});
    std::mt19937_64 random(seed);
    const double share = std::uniform_real_distribution<double>(0.1, 1)(random);
    const double compute_s = regime.compute_only_s, load_s = regime.load_only_s;
    regime = WithSuffix(std::move(regime), share * DivisibleBound(compute_s, load_s));
    const double suffix_s = SuffixSeconds(regime), overlapped_s = FirstToken(regime, true);
    if (suffix_s > 1.2 * DivisibleBound(compute_s, load_s))
      continue;  // a single step is longer than that
    result.ratios.Take(
        overlapped_s / OverlapBound(compute_s, load_s, suffix_s, regime.machine.layers), seed);
    result.gains.push_back(FirstToken(regime, false) / overlapped_s);
  }
  return result;
}

void ReportSuffixes(Reporter& report, const std::string& figure, const SuffixResult& result) {
  const auto& [ratios, gains] = result;
  report.Bar(figure, Quantile(ratios.values, 0.99), Sense::kAtMost, 1.08);
  report.Note(absl::StrFormat("median %.4f, worst %.4f, seed %d; gain median %.3f, greatest %.3f",
                              Median(ratios.values), ratios.worst, ratios.seed, Median(gains),
                              *std::max_element(gains.begin(), gains.end())));
}

void SuffixOverlap(Reporter& report) {
  const uint64_t regimes = report.quick() ? 300 : 2'000;
  ReportSuffixes(report, "restore_suffix_overlap_p99", RunSuffixes(0, regimes));
  ReportSuffixes(report, "restore_suffix_overlap_held_out_p99",
                 RunSuffixes(report.seed_base(), regimes));
  const Regime balanced = BalancedRegime();
  report.Bar("restore_suffix_overlap_gain",
             FirstToken(balanced, false) / FirstToken(balanced, true), Sense::kAtLeast, 1.15);
}

}  // namespace

std::vector<Row> RegimeRows() {
  return {
      {"3", RandomFigures(), RandomRegimes},
      {"4",
       {"restore_sim_volatile_median", "restore_sim_volatile_p99",
        "restore_sim_volatile_held_out_median", "restore_sim_volatile_held_out_p99",
        "restore_sim_volatile_gone_median", "restore_sim_volatile_gone_p99",
        "restore_sim_waits_beyond_deadline"},
       VolatileRegimes},
      {"7",
       {"restore_sim_utilization_compute", "restore_sim_utilization_compute_p01",
        "restore_sim_utilization_link", "restore_sim_utilization_link_p01"},
       Utilization},
      {"13",
       {"restore_suffix_overlap_p99", "restore_suffix_overlap_held_out_p99",
        "restore_suffix_overlap_gain"},
       SuffixOverlap},
  };
}

}  // namespace larder::bench
