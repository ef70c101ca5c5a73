// Rows 5 and 5b: many restores at once in CacheFlow's setting, in a batch and arriving one by one.
//
// The setting of its Figure 9: an L40S, Llama-3.1-8B, 10 Gbps, chunks of 512.  The costs are the
// model's shape on 45 % of the card's 362 Tflop/s and 2 ms for every step.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <random>

#include "absl/strings/str_format.h"
#include "bench/restore_sim/event_loop.h"
#include "bench/restore_sim/plot_file.h"
#include "bench/restore_sim/row.h"

namespace larder::bench {
namespace {

constexpr uint32_t kChunk = 512;
constexpr double kBytesPerToken = 128 * 1024, kLinkBytesPerSecond = 10e9 / 8;
constexpr double kFlops = 0.45 * 362e12, kParameters = 8.03e9, kLayers = 32, kHidden = 4096;

Machine L40s(uint16_t channels) {
  Machine machine;
  machine.layers = static_cast<uint16_t>(kLayers);
  machine.compute = {2e-3, 2 * kParameters / kFlops, 4 * kLayers * kHidden / kFlops};
  machine.rates.assign(channels, kLinkBytesPerSecond);
  return machine;
}

RequestSpec Request(uint64_t id, double tokens, uint16_t channel) {
  RequestSpec spec;
  spec.id = RequestId{id};
  spec.block_tokens = spec.chunk_tokens = kChunk;
  const uint32_t blocks = std::max(1u, static_cast<uint32_t>(std::lround(tokens / kChunk)));
  spec.tokens = blocks * kChunk;
  spec.stages = {{{0, static_cast<uint16_t>(kLayers)},
                  {{std::vector(blocks, ChannelId{channel}), kBytesPerToken * kChunk}}}};
  return spec;
}

enum class Way { kOurs, kAlgorithmOne, kOldestFirst, kLoadOnly, kComputeOnly };

// One engine that computes whole chunks, as vLLM does.
RunResult Serve(const Machine& machine, const std::vector<Arrival>& arrivals, Way way) {
  SchedulerOptions options;
  options.computes = way != Way::kLoadOnly;
  options.loads = way != Way::kComputeOnly;
  Profile profile{.layers = machine.layers, .compute = machine.compute, .doubt = 0.05};
  for (const double rate : machine.rates) profile.channels.push_back({"link", rate});
  std::unique_ptr<Policy> policy = FinishFirst();
  if (way == Way::kAlgorithmOne) policy = AlgorithmOne();
  if (way == Way::kOldestFirst || way == Way::kLoadOnly) policy = OldestFirst();
  if (way == Way::kComputeOnly) policy = TakeTurns();
  Scheduler scheduler(options, CostModel(profile), std::move(policy));
  return Run(machine, arrivals, scheduler);
}

std::vector<double> Waits(const RunResult& result) {
  std::vector<double> waits;
  for (const Outcome& outcome : result.outcomes)
    waits.push_back(outcome.restored_s - outcome.arrived_s);
  return waits;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// ---- row 5

struct BatchBar {
  uint16_t channels;
  size_t batch;
  double mean, p99;
};
constexpr BatchBar kBatchBars[] = {{1, 2, 1.3, 1.05},  {1, 4, 1.6, 1.05}, {1, 8, 1.8, 1.05},
                                   {1, 16, 2.0, 1.05}, {4, 2, 1.0, 1.15}, {4, 4, 1.0, 1.15},
                                   {4, 8, 1.3, 1.15},  {4, 16, 1.6, 1.15}};

// `held_out`: with seeds on which nothing was tuned.
std::string BatchFigure(const BatchBar& bar, const char* what, bool held_out) {
  return absl::StrFormat("restore_batch%d_%s%s%s", bar.batch, what,
                         bar.channels == 1 ? "" : "_4_channels", held_out ? "_held_out" : "");
}

std::vector<Arrival> DrawBatch(uint64_t seed, const BatchBar& bar) {
  std::mt19937_64 random(seed * 100 + bar.batch);
  std::uniform_real_distribution<double> tokens(2'000, 30'000);
  std::vector<Arrival> arrivals;
  for (size_t i = 0; i < bar.batch; ++i) {
    arrivals.push_back(
        {0, Request(i + 1, tokens(random), static_cast<uint16_t>(1 + i % bar.channels))});
  }
  return arrivals;
}

void Batch(Reporter& report, const BatchBar& bar, bool held_out) {
  const uint64_t seeds = report.quick() ? 40 : 400, first = held_out ? report.seed_base() : 0;
  const Machine machine = L40s(bar.channels);
  std::vector<double> waits[5];
  double ends[5] = {};
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const std::vector<Arrival> arrivals = DrawBatch(seed, bar);
    for (const Way way :
         {Way::kOurs, Way::kAlgorithmOne, Way::kOldestFirst, Way::kLoadOnly, Way::kComputeOnly}) {
      const RunResult result = Serve(machine, arrivals, way);
      const std::vector<double> some = Waits(result);
      auto& all = waits[static_cast<size_t>(way)];
      all.insert(all.end(), some.begin(), some.end());
      ends[static_cast<size_t>(way)] += result.end_s;
    }
  }
  const auto over = [&](Way way) { return Mean(waits[static_cast<size_t>(way)]) / Mean(waits[0]); };
  report.Bar(BatchFigure(bar, "mean_vs_cacheflow", held_out), over(Way::kAlgorithmOne),
             Sense::kAtLeast, bar.mean);
  report.Note(
      absl::StrFormat("%d batches; all done in %.3f of Algorithm 1's time; oldest first %.3f",
                      seeds, ends[0] / ends[1], over(Way::kOldestFirst)));
  report.Bar(BatchFigure(bar, "p99_vs_cacheflow", held_out),
             Quantile(waits[0], 0.99) / Quantile(waits[1], 0.99), Sense::kAtMost, bar.p99);
  const double single = std::min(over(Way::kLoadOnly), over(Way::kComputeOnly));
  if (bar.channels == 1) {
    report.Bar(BatchFigure(bar, "mean_vs_single", held_out), single, Sense::kAtLeast, 1.6);
  } else {
    report.Note(absl::StrFormat("loading alone / ours %.3f, computing alone / ours %.3f",
                                over(Way::kLoadOnly), over(Way::kComputeOnly)));
  }
}

void Batches(Reporter& report) {
  for (const bool held_out : {false, true})
    for (const BatchBar& bar : kBatchBars) Batch(report, bar, held_out);
}

std::vector<std::string> BatchFigures() {
  std::vector<std::string> figures;
  for (size_t i = 0; i < 2 * std::size(kBatchBars); ++i) {
    const BatchBar& bar = kBatchBars[i % std::size(kBatchBars)];
    const bool held_out = i >= std::size(kBatchBars);
    figures.push_back(BatchFigure(bar, "mean_vs_cacheflow", held_out));
    figures.push_back(BatchFigure(bar, "p99_vs_cacheflow", held_out));
    if (bar.channels == 1) figures.push_back(BatchFigure(bar, "mean_vs_single", held_out));
  }
  return figures;
}

// ---- row 5b

double ParetoTokens(std::mt19937_64& random) {
  constexpr double kAlpha = 1.2, kLow = 2'000, kHigh = 30'000;
  const double u = std::uniform_real_distribution<double>(0, 1)(random);
  return kLow / std::pow(1 - u * (1 - std::pow(kLow / kHigh, kAlpha)), 1 / kAlpha);
}

// How long a request takes with both resources to itself, perfectly divided.
double Alone(const Machine& machine, double tokens) {
  const double load = kBytesPerToken / kLinkBytesPerSecond, quadratic = machine.compute.quadratic_s;
  const double slope = machine.compute.linear_s + machine.compute.fixed_s / kChunk + load;
  const double computed =
      2 * load * tokens / (slope + std::sqrt(slope * slope + 2 * quadratic * load * tokens));
  return load * (tokens - computed);
}

// How long each request takes if, at every instant, the requests present share both resources
// equally.
std::vector<double> ProcessorSharing(const Machine& machine, const std::vector<Arrival>& arrivals) {
  using Due = std::pair<double, size_t>;  // the service that each has received when this one ends
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
  std::vector<double> waits(arrivals.size());
  double now_s = 0, served_s = 0;
  for (size_t next = 0; next < arrivals.size() || !due.empty();) {
    const double share = static_cast<double>(due.size());
    const double ends_s = due.empty() ? kNoDeadline : now_s + (due.top().first - served_s) * share;
    if (next < arrivals.size() && arrivals[next].at_s < ends_s) {
      if (!due.empty()) served_s += (arrivals[next].at_s - now_s) / share;
      now_s = arrivals[next].at_s;
      due.push({served_s + Alone(machine, arrivals[next].spec.tokens), next});
      ++next;
      continue;
    }
    served_s = due.top().first;
    now_s = ends_s;
    waits[due.top().second] = now_s - arrivals[due.top().second].at_s;
    due.pop();
  }
  return waits;
}

std::vector<Arrival> DrawArrivals(const Machine& machine, double load, size_t count,
                                  uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Arrival> arrivals;
  double work_s = 0;
  for (size_t i = 0; i < count; ++i) {
    arrivals.push_back({0, Request(i + 1, ParetoTokens(random), 1)});
    work_s += Alone(machine, arrivals.back().spec.tokens);
  }
  std::exponential_distribution<double> gap(load * static_cast<double>(count) / work_s);
  double at_s = 0;
  for (Arrival& arrival : arrivals) arrival.at_s = at_s += gap(random);
  return arrivals;
}

// `part` is a part of the figures' names.
void ReportArrivals(Reporter& report, const std::string& part, size_t count, uint64_t seed) {
  const Machine machine = L40s(1);
  double worst_share = 0, worst_cacheflow_p99 = 0, worst_oldest_p99 = 0;
  Plot plot{"Open arrivals", "load", "mean time to first token / ours",
            false,           false,  {{"Algorithm 1"}, {"oldest first"}}};
  for (const double load : {0.5, 0.65, 0.8, 0.9, 0.95}) {
    const std::vector<Arrival> arrivals = DrawArrivals(machine, load, count, seed);
    const RunResult result = Serve(machine, arrivals, Way::kOurs);
    const std::vector<double> ours = Waits(result);
    const std::vector<double> cacheflow = Waits(Serve(machine, arrivals, Way::kAlgorithmOne));
    const std::vector<double> oldest = Waits(Serve(machine, arrivals, Way::kOldestFirst));
    const std::vector<double> shared = ProcessorSharing(machine, arrivals);
    double share = 0;
    for (const Outcome& outcome : result.outcomes) {
      share = std::max(
          share, (outcome.restored_s - outcome.arrived_s) / shared[outcome.request.value - 1]);
    }
    const double p99 = Quantile(ours, 0.99);
    worst_share = std::max(worst_share, share);
    worst_cacheflow_p99 = std::max(worst_cacheflow_p99, p99 / Quantile(cacheflow, 0.99));
    worst_oldest_p99 = std::max(worst_oldest_p99, p99 / Quantile(oldest, 0.99));
    plot.series[0].x.push_back(load);
    plot.series[0].y.push_back(Mean(cacheflow) / Mean(ours));
    plot.series[1].x.push_back(load);
    plot.series[1].y.push_back(Mean(oldest) / Mean(ours));
    report.Note(absl::StrFormat(
        "load %.2f: mean %.3f s; Algorithm 1 / ours %.2f, oldest first / ours %.2f; p99 / "
        "Algorithm 1 %.3f, / oldest first %.3f; worst / processor sharing %.2f",
        load, Mean(ours), Mean(cacheflow) / Mean(ours), Mean(oldest) / Mean(ours),
        p99 / Quantile(cacheflow, 0.99), p99 / Quantile(oldest, 0.99), share));
    if (load != 0.8) continue;
    report.Bar("restore_open_" + part + "mean_vs_cacheflow", Mean(cacheflow) / Mean(ours),
               Sense::kAtLeast, 1.5);
    report.Bar("restore_open_" + part + "mean_vs_oldest_first", Mean(oldest) / Mean(ours),
               Sense::kAtLeast, 1.5);
  }
  report.Bar("restore_open_" + part + "p99_vs_cacheflow", worst_cacheflow_p99, Sense::kAtMost, 1.0);
  report.Bar("restore_open_" + part + "p99_vs_oldest_first", worst_oldest_p99, Sense::kAtMost,
             1.25);
  report.Bar("restore_open_" + part + "worst_vs_processor_sharing", worst_share, Sense::kAtMost, 4);
  if (!report.plots().empty() && part.empty())
    report.Note(Write(plot, report.plots(), "open_arrivals").ToString());
}

void OpenArrivals(Reporter& report) {
  const size_t count = report.quick() ? 10'000 : 100'000;
  ReportArrivals(report, "", count, 5);
  ReportArrivals(report, "held_out_", count, report.seed_base());
}

std::vector<std::string> OpenFigures() {
  std::vector<std::string> figures;
  for (const char* part : {"", "held_out_"}) {
    for (const char* what : {"mean_vs_cacheflow", "mean_vs_oldest_first", "p99_vs_cacheflow",
                             "p99_vs_oldest_first", "worst_vs_processor_sharing"})
      figures.push_back(std::string("restore_open_") + part + what);
  }
  return figures;
}

}  // namespace

std::vector<Row> BatchRows() {
  return {{"5", BatchFigures(), Batches}, {"5b", OpenFigures(), OpenArrivals}};
}

}  // namespace larder::bench
