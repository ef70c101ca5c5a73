// Chooses which reads of a session are checked: each one independently, one in `one_in` on average.
//
// Checking exactly every n-th read could coincide with the size of the clients' requests: with
// requests of 16 keys and every 64th key checked, only keys at one position of a request would ever
// be checked.  So the gap between two checks is drawn at random.
// Thread-safety: none; the lock of SessionLeases protects it.
#pragma once

#include <cmath>
#include <cstdint>

namespace larder {

class ReadSampler {
 public:
  // `one_in` 0 checks no read, 1 checks all.  Each session should have a different `seed`.
  ReadSampler(uint32_t one_in, uint64_t seed) : one_in_(one_in), state_(seed) { Draw(); }

  [[nodiscard]] bool Next() {
    if (one_in_ == 0) return false;
    if (gap_ > 0) {
      --gap_;
      return false;
    }
    Draw();
    return true;
  }

 private:
  // Draws the number of reads to skip from the geometric distribution with probability 1 / one_in_.
  void Draw() {
    if (one_in_ <= 1) return;
    // SplitMix64.
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    const double uniform = static_cast<double>((z >> 11) + 1) * 0x1p-53;  // (0, 1]
    gap_ = static_cast<uint64_t>(std::log(uniform) / std::log1p(-1.0 / one_in_));
  }

  const uint32_t one_in_;
  uint64_t state_;
  uint64_t gap_ = 0;
};

}  // namespace larder
