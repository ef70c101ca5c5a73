// Which cells to give out next where few are left: all staircases through them are tried.
//
// A cell is a layer of a chunk.  Two pointers cut one chunk only, and a cell may be much of what is
// left; and what is given out first should be right whatever the costs turn out to be.  So the
// fastest staircase is sought for the costs as they seem, and for both ways in which they may be
// wrong; where these disagree, the next cell is the one that is regretted least.
// Does not know who asks, nor what is under way beyond `busy_s`.
// Thread-safety: functions without state.
// Limits: kStaircasesMax of them; O(chunks * staircases) where the costs are in doubt.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace larder {

struct Endgame {
  static constexpr uint32_t kStaircasesMax = 512;

  // What one chunk costs, cut at any depth that is still open.
  struct Chunk {
    uint16_t low = 0, high = 0;       // of its depth
    bool above_low_is_there = false;  // cut at `low`, nothing of it is left to wait for
    double layer_s = 0;               // of computing
    // Of loading what is above a depth, [(depth - low) * lanes + lane].
    std::vector<double> loads_s = {};
    // The next piece of each lane is of the layer below this; 0: it has none.
    std::vector<uint16_t> piece_top = {};
    std::vector<double> piece_s = {};
    [[nodiscard]] double LoadSeconds(uint16_t depth, size_t lane, size_t lanes) const {
      return loads_s[static_cast<size_t>(depth - low) * lanes + lane];
    }
  };
  uint16_t layers = 1;
  size_t lanes = 0;
  std::vector<Chunk> chunks = {};
  // Until the engine, then each lane, is through with what it was given.
  std::vector<double> busy_s = {};
  double doubt = 0;  // of computing against loading, relative
};

struct EndgameAim {
  std::vector<uint16_t> depths = {};              // per chunk
  std::optional<size_t> compute = {};             // the chunk to compute a layer of
  std::vector<std::optional<size_t>> loads = {};  // per lane, to load a piece of
  // Per lane: nothing yet, for what is under way will tell which.
  std::vector<bool> waits = {};
};

// Whether there are few enough to try them all.
[[nodiscard]] bool IsEndgame(size_t chunks, uint16_t layers);

// REQUIRES: IsEndgame(game.chunks.size(), game.layers).
[[nodiscard]] EndgameAim Solve(const Endgame& game);

}  // namespace larder
