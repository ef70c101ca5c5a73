// Rows 1 and 2: Cake's own cells, by Cake as it is published, and by our scheduler.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "bench/restore_sim/event_loop.h"
#include "bench/restore_sim/plot_file.h"
#include "bench/restore_sim/published_cake.h"
#include "bench/restore_sim/regimes.h"
#include "bench/restore_sim/row.h"

namespace larder::bench {
namespace {

constexpr double kFarOff = 0.15;

const char* WhyFarOff(const Cell& cell) {
  if (cell.kv_bits < 16)
    return "quantized KV must be decoded, which the paper's link model leaves out";
  if (cell.tokens <= 4096) return "few steps: the first token's own costs are visible";
  if (cell.model == "70B") return "FP8 weights on hardware without FP8";
  return "a step with few tokens of the restore costs what the other requests' attention costs";
}

void PublishedCake(Reporter& report) {
  const CakeFit fit = FitCake();
  for (const auto& [name, hardware] : fit.hardware) {
    report.Note(absl::StrFormat("%s: %.0f Tflop/s, %.2f TB/s", name, hardware.flops_per_s / 1e12,
                                hardware.bytes_per_s / 1e12));
  }
  report.Note(absl::StrFormat("attention in a step of the other requests alone, 13B: %.1f ms",
                              fit.others_s_13b * 1e3));
  double sum[8] = {}, count[8] = {};
  Plot plot{"Cake, published and simulated", "speedup, printed", "speedup, simulated", true, true};
  plot.series = {{"over loading alone", {}, {}, true}, {"over computing alone", {}, {}, true}};
  for (const Cell& cell : PaperCells()) {
    const CakeTimes times = RunPublishedCake(fit, cell);
    const double ours[] = {times.load_only_s / times.cake_s, times.compute_only_s / times.cake_s};
    const double theirs[] = {cell.over_load, cell.over_compute};
    for (int i = 0; i < 2; ++i) {
      const double error = std::abs(ours[i] / theirs[i] - 1);
      sum[cell.table] += error;
      count[cell.table] += 1;
      plot.series[static_cast<size_t>(i)].x.push_back(theirs[i]);
      plot.series[static_cast<size_t>(i)].y.push_back(ours[i]);
      if (error <= kFarOff) continue;
      report.Note(absl::StrFormat("%.0f %% off: %s, over %s alone: %.2f, printed %.2f (%s)",
                                  error * 100, Describe(cell), i == 0 ? "loading" : "computing",
                                  ours[i], theirs[i], WhyFarOff(cell)));
    }
  }
  for (int table = 4; table <= 7; ++table) {
    report.Note(
        absl::StrFormat("Table %d: mean error %.1f %%", table, 100 * sum[table] / count[table]));
  }
  report.Bar("restore_sim_cake_table3", sum[3] / count[3], Sense::kAtMost, 0.04);
  double worst = 0;
  for (int table = 4; table <= 7; ++table) worst = std::max(worst, sum[table] / count[table]);
  report.Bar("restore_sim_cake_error", worst, Sense::kAtMost, 0.08);
  if (!report.plots().empty()) report.Note(Write(plot, report.plots(), "cake").ToString());
}

Regime RegimeOf(const CakeFit& fit, const Cell& cell) {
  Regime regime;
  regime.machine.layers = static_cast<uint16_t>(ShapeOf(cell.model).layers);
  regime.machine.compute = CostOf(fit, cell);
  regime.machine.rates = {BytesPerSecond(cell)};
  RequestSpec& spec = regime.spec;
  spec.id = RequestId{1};
  spec.chunk_tokens = StepTokens(cell);
  // Blocks as the paper fetches them, except where the steps are no multiple of them.
  spec.block_tokens = spec.chunk_tokens % 128 == 0 || 128 % spec.chunk_tokens == 0 ? 128 : 64;
  spec.tokens = cell.tokens;
  const double bytes = spec.block_tokens * BytesPerToken(cell);
  spec.stages = {{{0, regime.machine.layers},
                  {{std::vector(spec.tokens / spec.block_tokens, ChannelId{1}), bytes}}}};
  Complete(&regime);
  regime.truth.splits_layers = false;  // as in vLLM
  return regime;
}

double Restore(const Regime& regime, const Profile& profile) {
  SchedulerOptions options;
  options.patience_s_min = 1;
  Scheduler scheduler(options, CostModel(profile), FinishFirst());
  return Run(regime.machine, {{0, regime.spec}}, scheduler).outcomes[0].restored_s;
}

// The worst cells, with a profile whose compute and link are wrong by given factors.
struct Worst {
  double optimum = 0, single = 0;
  Cell optimum_cell = {}, single_cell = {};
  void Take(const Cell& cell, const Regime& regime, double seconds) {
    const double to_optimum = seconds / MakePlan(regime.truth).restore_s;
    const double to_single = seconds / std::min(regime.compute_only_s, regime.load_only_s);
    if (to_optimum > optimum) optimum_cell = cell;
    if (to_single > single) single_cell = cell;
    optimum = std::max(optimum, to_optimum);
    single = std::max(single, to_single);
  }
};

void OurCells(Reporter& report) {
  const CakeFit fit = FitCake();
  Worst right, wrong;
  for (const Cell& cell : PaperCells()) {
    const Regime regime = RegimeOf(fit, cell);
    for (const double compute : {0.7, 1.0, 1.3}) {
      for (const double link : {0.7, 1.0, 1.3}) {
        Profile profile{.layers = regime.machine.layers, .compute = regime.machine.compute};
        profile.compute.fixed_s *= compute;
        profile.compute.quadratic_s *= compute;
        profile.channels = {{"link", regime.machine.rates[0] * link}};
        const bool is_right = compute == 1 && link == 1;
        profile.doubt = is_right ? 0.02 : 0.3;
        (is_right ? right : wrong).Take(cell, regime, Restore(regime, profile));
      }
    }
  }
  report.Bar("restore_sim_paper_cells_optimum", right.optimum, Sense::kAtMost, 1.05);
  report.Note("worst: " + Describe(right.optimum_cell));
  report.Bar("restore_sim_paper_cells_optimum_wrong_profile", wrong.optimum, Sense::kAtMost, 1.05);
  report.Note("worst: " + Describe(wrong.optimum_cell));
  report.Bar("restore_sim_paper_cells_better_single", right.single, Sense::kAtMost, 1.0 + 1e-9);
  report.Note("worst: " + Describe(right.single_cell));
  report.Bar("restore_sim_paper_cells_better_single_wrong_profile", wrong.single, Sense::kAtMost,
             1.01);
  report.Note("worst: " + Describe(wrong.single_cell));
}

}  // namespace

std::vector<Row> PaperRows() {
  return {{"1", {"restore_sim_cake_table3", "restore_sim_cake_error"}, PublishedCake},
          {"2",
           {"restore_sim_paper_cells_optimum", "restore_sim_paper_cells_optimum_wrong_profile",
            "restore_sim_paper_cells_better_single",
            "restore_sim_paper_cells_better_single_wrong_profile"},
           OurCells}};
}

}  // namespace larder::bench
