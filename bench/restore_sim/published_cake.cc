// See published_cake.h.
#include "bench/restore_sim/published_cake.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace larder::bench {
namespace {

constexpr uint32_t kFetchTokens = 128;

// A chunk that the compute thread has finished.
struct Computed {
  double at_s;
  uint32_t tokens;
};

// COMPUTEKV: stops when the next chunk has been fetched already.
std::vector<Computed> ComputeThread(const ComputeCost& cost, uint32_t tokens, uint32_t step,
                                    double fetch_s) {
  std::vector<Computed> computed;
  double now_s = 0;
  for (uint32_t at = 0; at < tokens;) {
    const auto fetched = static_cast<uint32_t>(std::min(now_s / fetch_s + 1e-9, 1e9));
    if (at + uint64_t{fetched} * kFetchTokens >= tokens) break;
    const uint32_t end = std::min(at + step, tokens);
    now_s += cost.Seconds({at, end});
    computed.push_back({now_s, end});
    at = end;
  }
  return computed;
}

// FETCHKV: ends when its pointer meets the other thread's.
double FetchThread(const std::vector<Computed>& computed, uint32_t tokens, double fetch_s) {
  double now_s = 0;
  size_t next = 0;
  for (uint32_t left = tokens; left > 0; left -= std::min(left, kFetchTokens)) {
    while (next < computed.size() && computed[next].at_s <= now_s + 1e-12) ++next;
    if (next > 0 && computed[next - 1].tokens >= left) break;
    now_s += fetch_s;
  }
  return now_s;
}

// Memory bandwidth of the cards, as their maker states it.
double MemoryBytesPerSecond(const std::string& hardware) {
  static const std::map<std::string, double> published = {
      {"A100", 2.039e12}, {"2xA100", 4.078e12}, {"H100", 2.0e12}};
  return published.at(hardware);
}

// The mean error on Table 3.  All its steps have one size, so it hardly distinguishes a slow memory
// from a slow engine; a small penalty keeps the memory near what its maker states.
double Table3Error(const CakeFit& fit) {
  double sum = 0, count = 0, price = 0;
  for (const auto& [name, hardware] : fit.hardware) {
    price += 0.01 * std::pow(std::log(hardware.bytes_per_s / MemoryBytesPerSecond(name)), 2);
  }
  for (const Cell& cell : PaperCells()) {
    if (cell.table != 3) continue;
    const CakeTimes times = RunPublishedCake(fit, cell);
    sum += std::abs(times.load_only_s / times.cake_s / cell.over_load - 1);
    sum += std::abs(times.compute_only_s / times.cake_s / cell.over_compute - 1);
    count += 2;
  }
  return sum / count + price;
}

}  // namespace

const ModelShape& ShapeOf(const std::string& model) {
  // Layers, hidden size, parameters, KV (Table 1), weights (70B in FP8).
  static const std::map<std::string, ModelShape> shapes = {
      {"7B", {32, 4096, 6.74e9, 512 * 1024, 2}},
      {"13B", {40, 5120, 13.02e9, 800 * 1024, 2}},
      {"8B", {32, 4096, 8.03e9, 128 * 1024, 2}},
      {"70B", {80, 8192, 70.6e9, 320 * 1024, 1}},
  };
  return shapes.at(model);
}

uint32_t StepTokens(const Cell& cell) {
  return static_cast<uint32_t>(std::lround(cell.chunk_tokens * cell.utilization));
}
double BytesPerToken(const Cell& cell) {
  return ShapeOf(cell.model).kv_bytes_per_token * cell.kv_bits / 16;
}
double BytesPerSecond(const Cell& cell) { return cell.gbps * 1e9 / 8; }

// A step is always full, also with other users' tokens.
ComputeCost CostOf(const CakeFit& fit, const Cell& cell) {
  const ModelShape& shape = ShapeOf(cell.model);
  const Hardware& hardware = fit.hardware.at(cell.hardware);
  const double attention = shape.layers * shape.hidden,
               attention_13b = ShapeOf("13B").layers * ShapeOf("13B").hidden;
  ComputeCost cost;
  cost.fixed_s = 2 * shape.parameters * cell.chunk_tokens / hardware.flops_per_s +
                 shape.parameters * shape.bytes_per_parameter / hardware.bytes_per_s +
                 fit.others_s_13b * (1 - cell.utilization) * attention / attention_13b;
  const double read_s = shape.kv_bytes_per_token / hardware.bytes_per_s / StepTokens(cell);
  cost.quadratic_s = 4 * attention / hardware.flops_per_s + read_s;
  return cost;
}

CakeTimes RunPublishedCake(const CakeFit& fit, const Cell& cell) {
  const ComputeCost cost = CostOf(fit, cell);
  const uint32_t step = StepTokens(cell);
  const double fetch_s = kFetchTokens * BytesPerToken(cell) / BytesPerSecond(cell);
  CakeTimes times;
  times.load_only_s = cell.tokens / kFetchTokens * fetch_s;
  for (uint32_t at = 0; at < cell.tokens; at += step) {
    times.compute_only_s += cost.Seconds({at, std::min(at + step, cell.tokens)});
  }
  const std::vector<Computed> computed = ComputeThread(cost, cell.tokens, step, fetch_s);
  const double computed_s = computed.empty() ? 0 : computed.back().at_s;
  times.cake_s = std::max(computed_s, FetchThread(computed, cell.tokens, fetch_s));
  return times;
}

// A random search with steps that become smaller, from several starting points; always the same
// random numbers.
CakeFit FitCake() {
  std::mt19937_64 random(1);
  CakeFit best;
  double best_error = 1;
  for (const double others_s : {0.0, 1e-2, 2e-2}) {
    CakeFit fit;
    for (const char* name : {"A100", "H100", "2xA100"})
      fit.hardware[name] = {2e14, MemoryBytesPerSecond(name)};
    fit.others_s_13b = others_s;
    double error = Table3Error(fit);
    for (double stride = 0.4; stride > 5e-3; stride *= 0.995) {
      CakeFit other = fit;
      std::normal_distribution<double> nudge(0, stride);
      for (auto& [name, hardware] : other.hardware) {
        if (random() % 3 == 0) hardware.flops_per_s *= std::exp(nudge(random));
        if (random() % 3 == 0) hardware.bytes_per_s *= std::exp(nudge(random));
      }
      if (random() % 3 == 0)
        other.others_s_13b = std::max(0.0, other.others_s_13b + 3e-2 * nudge(random));
      const double other_error = Table3Error(other);
      if (other_error >= error) continue;
      error = other_error;
      fit = other;
    }
    if (error >= best_error) continue;
    best_error = error;
    best = fit;
  }
  return best;
}

}  // namespace larder::bench
