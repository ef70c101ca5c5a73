// A scheduler that a test drives call by call, for decisions that can be counted.
#pragma once

#include <memory>
#include <vector>

#include "client/restore/scheduler.h"

namespace larder::testing {

inline constexpr uint16_t kLayers = 6;

// A step takes compute_s for each 256 tokens, plus a tenth of that.
inline CostModel Costs(double compute_s = 0.01, double bytes_per_s = 1e8) {
  Profile profile;
  profile.layers = kLayers;
  profile.compute = {compute_s / 10, compute_s / 256, compute_s * 1e-7};
  for (int i = 0; i < 3; ++i) profile.channels.push_back({"channel", bytes_per_s / (i + 1)});
  return CostModel(profile);
}

inline RequestSpec Spec(uint64_t id, uint32_t blocks, uint32_t block_tokens = 128,
                        uint32_t chunk_tokens = 256) {
  RequestSpec spec;
  spec.id = RequestId{id};
  spec.tokens = blocks * block_tokens;
  spec.block_tokens = block_tokens;
  spec.chunk_tokens = chunk_tokens;
  spec.stages = {{{0, kLayers}, {{std::vector(blocks, ChannelId{1}), 1e5}}}};
  return spec;
}

// Only one channel is used, for one load at a time.
struct HandDriven {
  explicit HandDriven(SchedulerOptions options, double compute_s, double bytes_per_s)
      : scheduler(options, Costs(compute_s, bytes_per_s), FinishFirst()) {}
  std::vector<Load> Loads(double now_s = 0) {
    std::vector<Load> loads;
    scheduler.NextLoads(ChannelId{1}, 1, now_s, &loads);
    return loads;
  }
  Scheduler scheduler;
};

}  // namespace larder::testing
