// Segments that a codec may be given.  For tests only.
#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

namespace larder {

using Bytes = std::vector<std::byte>;

inline Bytes Noise(size_t size, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}
// 16-bit floats as in a KV cache: random signs and mantissas, few exponents.
inline Bytes Floats(size_t size, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values(0, 1);
  Bytes bytes(size);
  for (size_t at = 0; at + 4 <= size; at += 2) {
    const float value = values(random);
    std::memcpy(bytes.data() + at, reinterpret_cast<const char*>(&value) + 2, 2);  // bf16
  }
  return bytes;
}

}  // namespace larder
