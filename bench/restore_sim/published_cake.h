// Cake as it is published: its two threads (Appendix A, Algorithm 1) on hardware of two numbers.
//
// A step costs its floating-point operations at one rate and its bytes, weights and KV read, at
// another.  Both rates, and what the attention of other users' tokens adds to a step that they fill
// (of the 13B model), are fitted on Table 3. Everything else is the models' published shapes.
// Values.  Thread-safety: functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "bench/restore_sim/papers_cells.h"
#include "client/restore/cost_model.h"

namespace larder::bench {

struct ModelShape {
  double layers, hidden, parameters, kv_bytes_per_token, bytes_per_parameter;
};
[[nodiscard]] const ModelShape& ShapeOf(const std::string& model);

struct Hardware {
  double flops_per_s = 0, bytes_per_s = 0;
};
struct CakeFit {
  std::map<std::string, Hardware> hardware = {};
  double others_s_13b = 0;  // a step that is theirs alone; of other models by their attention
};
// Least mean error on Table 3.
[[nodiscard]] CakeFit FitCake();

// What the engine of a cell costs for steps of `StepTokens(cell)`, and what its link does.
[[nodiscard]] ComputeCost CostOf(const CakeFit& fit, const Cell& cell);
[[nodiscard]] uint32_t StepTokens(const Cell& cell);
[[nodiscard]] double BytesPerToken(const Cell& cell);
[[nodiscard]] double BytesPerSecond(const Cell& cell);

struct CakeTimes {
  double compute_only_s = 0, load_only_s = 0, cake_s = 0;
};
[[nodiscard]] CakeTimes RunPublishedCake(const CakeFit& fit, const Cell& cell);

}  // namespace larder::bench
