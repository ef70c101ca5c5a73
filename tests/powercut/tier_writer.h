// What tier_writer writes, for the test that examines the result.
#pragma once

#include <cstdint>

#include "storage/types.h"

namespace larder::powercut {

inline constexpr ByteCount kTierLimit = MiB(96);  // two shards of two data files
inline constexpr uint32_t kThreads = 2;           // thread n % kThreads handles number n
inline constexpr uint32_t kBlocks = 64;
inline constexpr uint32_t kFacts = 24;

}  // namespace larder::powercut
