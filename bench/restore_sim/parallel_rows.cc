// Rows 6 and 6b: one prefix over the stages of a pipeline, and over tensor-parallel ranks.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "bench/restore_sim/event_loop.h"
#include "bench/restore_sim/regimes.h"
#include "bench/restore_sim/row.h"
#include "client/restore/plan.h"
#include "client/restore/staircase.h"

namespace larder::bench {
namespace {

constexpr uint32_t kTokens = 16'384, kBlock = 128, kChunk = 512;
constexpr uint16_t kLayers = 32;
constexpr double kKvBytesPerToken = 128 * 1024,
                 kActivationBytesPerToken = 8 * 1024;  // Llama-3.1-8B
constexpr double kLinear = 1e-4, kQuadratic = 3e-9;

double ComputeOnly() { return ComputeCost{0, kLinear, kQuadratic}.Seconds({0, kTokens}); }

SchedulerOptions Options() {
  SchedulerOptions options;
  options.engine = {.splits_layers = true, .abandons_steps = true};
  options.patience_s_min = 1;
  return options;
}

Profile ProfileOf(const Machine& machine, double compute_error) {
  Profile profile{.layers = machine.layers, .compute = machine.compute, .doubt = 0.3};
  profile.compute.linear_s *= compute_error;
  profile.compute.quadratic_s *= compute_error;
  for (const double rate : machine.rates) profile.channels.push_back({"channel", rate});
  return profile;
}

// ---- row 6

struct StagesCase {
  uint16_t stages;
  bool shared;       // one channel for all stages
  double load_over;  // loading all of the KV over one channel / computing all of it on one stage
};

struct Pipeline {
  Machine machine = {};
  RequestSpec spec = {};
};

Pipeline MakePipeline(const StagesCase& c) {
  Pipeline p;
  p.machine.layers = kLayers;
  p.machine.stages = c.stages;
  p.machine.compute = {0, kLinear, kQuadratic};
  p.machine.rates.assign(c.shared ? 1 : c.stages,
                         kTokens * kKvBytesPerToken / (ComputeOnly() * c.load_over));
  p.spec = {.id = RequestId{1}, .tokens = kTokens, .block_tokens = kBlock, .chunk_tokens = kChunk};
  for (uint16_t s = 0; s < c.stages; ++s) {
    const std::vector<ChannelId> channel(kTokens / kBlock,
                                         static_cast<ChannelId>(c.shared ? 1 : s + 1));
    StageSpec stage;
    stage.layers = {static_cast<uint16_t>(kLayers * s / c.stages),
                    static_cast<uint16_t>(kLayers * (s + 1) / c.stages)};
    stage.ranks = {{channel, kBlock * kKvBytesPerToken / c.stages}};
    if (s > 0) stage.boundary = {channel, kBlock * kActivationBytesPerToken};
    p.spec.stages.push_back(stage);
  }
  return p;
}

// The tokens that a stage computes in `seconds`, at most all of them.
double Computed(const StagesCase& c, double seconds) {
  const double linear = kLinear / c.stages, quadratic = kQuadratic / c.stages;
  const double tokens = (std::sqrt(linear * linear + 2 * quadratic * seconds) - linear) / quadratic;
  return std::min<double>(tokens, kTokens);
}

// No schedule is faster: each stage computes from the time when its first chunk's activations can
// be there, each channel loads the rest and the activations that computing starts from, and
// fractions of tokens are allowed.
double StagesOptimum(const StagesCase& c, double rate) {
  const double kv_s = kKvBytesPerToken / c.stages / rate;
  const double act_s = std::min(kActivationBytesPerToken / rate, kv_s);
  double low = 0, high = ComputeOnly() + kTokens * kKvBytesPerToken / rate;
  for (int i = 0; i < 100; ++i) {
    const double t = (low + high) / 2;
    const double first_s = (kTokens - Computed(c, t)) * kv_s;
    const double computed = Computed(c, std::max(0.0, t - kChunk * act_s));
    const double other_s = (kTokens - computed) * kv_s + computed * act_s;
    const double load_s =
        c.shared ? first_s + (c.stages - 1) * other_s : (c.stages > 1 ? other_s : first_s);
    (load_s <= t ? high : low) = t;
  }
  return high;
}

void Stages(Reporter& report) {
  double worst = 0;
  for (const bool shared : {true, false}) {
    for (const auto stages : std::initializer_list<uint16_t>{1, 2, 4, 8}) {
      for (const double load_over : {0.5, 1.0, 2.0}) {
        const StagesCase c{stages, shared, load_over};
        const Pipeline p = MakePipeline(c);
        Scheduler scheduler(Options(), CostModel(ProfileOf(p.machine, 1.3)), FinishFirst());
        const double seconds = Run(p.machine, {{0, p.spec}}, scheduler).outcomes[0].restored_s;
        const double optimum = StagesOptimum(c, p.machine.rates[0]);
        const double bound = DivisibleBound(ComputeOnly(), ComputeOnly() * load_over) / stages;
        worst = std::max(worst, seconds / optimum);
        report.Note(absl::StrFormat(
            "%d stages, %s, load/compute %.1f: %.4f s, / optimum %.4f; T*/S %.4f s, / T*/S %.3f",
            stages, shared ? "one channel" : "a channel each", load_over, seconds,
            seconds / optimum, bound, seconds / bound));
      }
    }
  }
  report.Bar("restore_sim_stages_optimum", worst, Sense::kAtMost, 1.05);
}

// ---- row 6b

// By the driver's own records: [rank][block] is the set of layers that the rank received.
using Received = std::vector<std::vector<LayerSet>>;

// Whether every rank received everything that was not computed.
bool MeetsAlike(const Received& received, const std::vector<uint16_t>& depths) {
  for (const std::vector<LayerSet>& rank : received) {
    for (size_t b = 0; b < depths.size(); ++b) {
      if (!rank[b].Contains(LayerSet({depths[b], kLayers}))) return false;
    }
  }
  return true;
}

// Of what a rank received, the share that was computed in the end all the same, because other ranks
// had not got as far; the worst rank's.
double InVain(const Received& received, const std::vector<uint16_t>& depths) {
  double worst = 0;
  for (const std::vector<LayerSet>& rank : received) {
    double brought = 0, computed = 0;
    for (size_t b = 0; b < depths.size(); ++b) {
      brought += rank[b].count();
      computed += (rank[b] & LayerSet({0, depths[b]})).count();
    }
    worst = std::max(worst, computed / brought);
  }
  return worst;
}

void Ranks(Reporter& report) {
  double worst = 0;
  bool agree = true;
  for (const auto ranks : std::initializer_list<uint16_t>{2, 4, 8}) {
    for (const double spread : {1.2, 2.0, 5.0}) {
      Machine machine;
      machine.layers = kLayers;
      machine.compute = {0, kLinear, kQuadratic};
      RequestSpec spec{
          .id = RequestId{1}, .tokens = kTokens, .block_tokens = kBlock, .chunk_tokens = kChunk};
      StageSpec stage;
      stage.layers = {0, kLayers};
      for (uint16_t r = 0; r < ranks; ++r) {
        const double share = std::pow(spread, -static_cast<double>(r) / (ranks - 1));
        machine.rates.push_back(kTokens * kKvBytesPerToken / ranks / ComputeOnly() * share * 1.5);
        stage.ranks.push_back({std::vector(kTokens / kBlock, static_cast<ChannelId>(r + 1)),
                               kBlock * kKvBytesPerToken / ranks});
      }
      spec.stages = {stage};
      Received received(ranks, std::vector<LayerSet>(kTokens / kBlock));
      machine.placed = [&received](const Load& load) {
        LayerSet& layers = received[load.rank][load.block];
        layers = layers | LayerSet(load.layers);
      };
      Scheduler scheduler(Options(), CostModel(ProfileOf(machine, 1.3)), FinishFirst());
      const RunResult result = Run(machine, {{0, spec}}, scheduler);
      const double seconds = result.outcomes[0].restored_s;
      const double optimum = LowerBound(Truth(machine, spec, ranks - 1u));
      const auto& depths = result.outcomes[0].stages[0].depths;
      agree &= MeetsAlike(received, depths);
      const auto meet = std::find(depths.begin(), depths.end(), 0) - depths.begin();
      worst = std::max(worst, seconds / optimum);
      report.Note(absl::StrFormat(
          "%d ranks, rates apart by %.1f: meet at block %d on all, %.4f s, / optimum of the "
          "slowest %.4f; loaded without use by one rank at most %.4f",
          ranks, spread, meet, seconds, seconds / optimum, InVain(received, depths)));
    }
  }
  report.Bar("restore_sim_ranks_optimum", worst, Sense::kAtMost, 1.05);
  report.Bar("restore_sim_ranks_agree", agree ? 1 : 0, Sense::kAtLeast, 1);
}

}  // namespace

std::vector<Row> ParallelRows() {
  return {{"6", {"restore_sim_stages_optimum"}, Stages},
          {"6b", {"restore_sim_ranks_optimum", "restore_sim_ranks_agree"}, Ranks}};
}

}  // namespace larder::bench
