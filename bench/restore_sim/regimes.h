// Machines, prefixes and profiles drawn from a seed.
//
// Ownership: values.  Thread-safety: functions without state.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "bench/restore_sim/event_loop.h"
#include "client/restore/plan.h"

namespace larder::bench {

// One prefix on one machine, and the profile that the scheduler gets.
struct Regime {
  Machine machine = {};
  RequestSpec spec = {};
  Profile profile = {};
  PlanInput truth = {};  // of the first rank, with the machine's costs
  double compute_only_s = 0;
  double load_only_s =
      0;  // with holes: each hole is computed when everything before it has been loaded
};

struct RegimeOptions {
  uint32_t tokens_min = 256, tokens_max = 131'072;
  double gbps_min = 0.1, gbps_max = 400;
  double profile_error = 0.3;  // of compute and of each channel, at most
  double holes = 0.2;          // share of the regimes that have holes
  double second_channel = 0;   // share of the regimes whose blocks lie on two channels
  bool tiny = false;           // at most 12 chunks and 6 layers
};

[[nodiscard]] Regime DrawRegime(uint64_t seed, const RegimeOptions& options);

// The true costs of a restore on one rank of the first stage.
[[nodiscard]] PlanInput Truth(const Machine& machine, const RequestSpec& spec, size_t rank);

// Sets the parts of a regime that follow from its machine and its request.
void Complete(Regime* regime);

// The machine's costs, wrong by up to `error` for compute and for each channel.
[[nodiscard]] Profile WrongProfile(const Machine& machine, double error, std::mt19937_64& random);

}  // namespace larder::bench
