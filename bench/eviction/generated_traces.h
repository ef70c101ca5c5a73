// Traces that are generated: users by Zipf 1.0, system prompts shared by many users, conversations
// of a geometric number of turns, each turn the whole history and something new.
//
// Thread-safety: functions without state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "storage/replay/request_trace.h"

namespace larder::bench {

// The users: those of one assistant; of a service with a hundred teams' prompts; and agents, each
// of which has long instructions and tools of its own.
struct Population {
  const char* name;
  size_t users, prompts, prompt_blocks;
};
inline constexpr Population kPopulations[] = {
    {"assistant", 300, 8, 64}, {"teams", 1000, 100, 128}, {"agents", 1000, 256, 256}};

// Two requests a second, of blocks of 16 tokens.  Equal arguments give equal traces.
[[nodiscard]] replay::RequestTrace GenerateTrace(uint64_t seed, const Population& population,
                                                 size_t requests);

}  // namespace larder::bench
