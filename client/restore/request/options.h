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
  bool abandons_steps = false;  // drops a running step soon after the restore cancels it
  bool hands_over = false;      // a stage passes the activations that it computes to the next stage
  // Computes each layer of the tokens behind the prefix (suffix) once the prefix has that layer.
  bool overlaps_suffix = false;
};

struct SchedulerOptions {
  EngineTraits engine = {};
  bool computes = true;  // false: load only; if a block cannot be loaded, Outcome::lost is set
  bool loads = true;     // false: compute only
  // The engine and the channels mostly do not begin work that the other would finish sooner, as
  // predicted (compute_choice.h, load_choice.h).
  bool falls_back = true;
  bool hedges = true;
  // A load is late when its channel should have served it for `patience` times its predicted time
  // and for at least `patience_s_min` seconds, or when the deadline of its request has passed.
  double patience = 4;
  double patience_s_min = 0.05;
  // A step or a load that would take more than this part of the time that remains for its stage
  // gets fewer layers where that is possible, but at least one.  Only for engines that split
  // layers.
  double finest = 1.0 / 16;
  size_t trace_capacity = 0;
};

}  // namespace larder
