// The names that fill the lookup server's index, so that its clients can ask for them.
//
// Entry i of N has a name made from i.  A chain consists of kLookupDigests names: of entries that
// were inserted one after the other, as the blocks of a prompt are, or of every N /
// kLookupDigests-th entry, so that they are as far apart in the index as they can be.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "storage/types.h"

namespace larder::bench {

inline constexpr uint32_t kLookupTokens = 131'072;
inline constexpr size_t kLookupDigests = 500;
inline constexpr char kLookupShape[] = "64kib";  // of bench/harness/shapes.h

[[nodiscard]] inline Digest FillerDigest(uint64_t i) {
  const auto mix = [](uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
  };
  const uint64_t words[2] = {mix(2 * i), mix(2 * i + 1)};
  Digest digest;
  std::memcpy(digest.bytes.data(), words, sizeof words);
  return digest;
}

// Chain c, packed, of the entries / kLookupDigests chains.
[[nodiscard]] inline std::string PackedFillerChain(uint64_t c, uint64_t entries, bool scattered) {
  const uint64_t chains = entries / kLookupDigests;
  std::string packed;
  for (size_t k = 0; k < kLookupDigests; ++k) {
    const Digest digest =
        FillerDigest(scattered ? c % chains + k * chains : c % chains * kLookupDigests + k);
    packed.append(reinterpret_cast<const char*>(digest.bytes.data()), kDigestBytes);
  }
  return packed;
}

[[nodiscard]] inline std::vector<uint32_t> LookupTokens() {
  std::vector<uint32_t> tokens(kLookupTokens);
  for (uint32_t i = 0; i < kLookupTokens; ++i) tokens[i] = i * 2654435761u % 50'000;
  return tokens;
}

}  // namespace larder::bench
