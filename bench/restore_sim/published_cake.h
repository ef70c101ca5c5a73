// Cake as published: its two threads (Appendix A, Algorithm 1) on hardware that is described by two
// numbers.
//
// A step costs its floating-point operations at one rate and its bytes, weights and KV read, at
// another.  Both rates are fitted on Table 3, and so is what the attention of other users' tokens
// adds to a step that they fill (for the 13B model).  Everything else is the models' published
// shapes.
// Ownership: values.  Thread-safety: functions without state.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "bench/restore_sim/papers_cells.h"
#include "client/restore/costs/cost_model.h"

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
  double others_s_13b = 0;  // in a step of other users alone; scaled by attention for other models
};
// The fit with the least mean error on Table 3.
[[nodiscard]] CakeFit FitCake();

// What the engine of a cell costs for steps of `StepTokens(cell)`, and the rate of its link.
[[nodiscard]] ComputeCost CostOf(const CakeFit& fit, const Cell& cell);
[[nodiscard]] uint32_t StepTokens(const Cell& cell);
[[nodiscard]] double BytesPerToken(const Cell& cell);
[[nodiscard]] double BytesPerSecond(const Cell& cell);

struct CakeTimes {
  double compute_only_s = 0, load_only_s = 0, cake_s = 0;
};
[[nodiscard]] CakeTimes RunPublishedCake(const CakeFit& fit, const Cell& cell);

}  // namespace larder::bench
