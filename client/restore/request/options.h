// What an engine can do, and how its restores are scheduled.
//
// Ownership: values.
#pragma once

#include <cstddef>
#include <limits>

namespace larder {

inline constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// What the engine can do.  llama.cpp can do none of this.
struct EngineTraits {
  bool splits_layers = false;   // computes a chunk up to a layer, and continues from there later
  bool abandons_steps = false;  // soon drops a step that is under way when told to
  bool hands_over = false;      // a stage gets the activations that the stage before it computes
  // Computes the suffix layer by layer, each as soon as the engine has that layer of the prefix.
  bool overlaps_suffix = false;
};

struct SchedulerOptions {
  EngineTraits engine = {};
  bool computes = true;    // false: load only; what does not come is lost (Outcome::lost)
  bool loads = true;       // false: compute only
  bool falls_back = true;  // neither resource begins what the other is through with sooner
  bool hedges = true;
  // A load is late after this many times what it should take, and never before the other.
  double patience = 4;
  double patience_s_min = 0.05;
  // When little is left, a step or a load takes at most this part of what is left.  It is cut
  // between layers.
  double finest = 1.0 / 16;
  size_t trace_capacity = 0;
};

}  // namespace larder
