// Chooses which cells the engine and the channels get next when few are left, by trying all
// staircases through them.
//
// A cell is a layer of a chunk.  A lane (StageLane) is the blocks of one rank on one channel.  A
// staircase is a depth for each chunk, none larger than the one before (except behind chunks that
// are present): the layers below it are computed, the layers above it loaded.  Near the end, one
// cell may be much of the work that is left, and the first choices should be right whatever the
// costs turn out to be.  So the search finds the fastest staircase for the predicted costs, and for
// two other guesses: computing is slower than predicted relative to loading, and faster.  If the
// three guesses disagree about the next cell, the search chooses the cell whose largest relative
// loss of time in any guess is smallest.
// The search does not know the requests, and knows the work under way only by `busy_s`.
// Thread-safety: functions without state.
// Limits: kStaircasesMax staircases; at most 3 + 3 * chunks * (1 + lanes) searches through them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace larder {

struct Endgame {
  static constexpr uint32_t kStaircasesMax = 512;

  // What one chunk costs at each depth that is still possible.
  struct Chunk {
    uint16_t low = 0, high = 0;       // the possible depths
    bool above_low_is_there = false;  // layers [low, layers) are already present
    double layer_s = 0;               // seconds to compute one layer
    // Seconds for a StageLane to load the layers from a depth on, at index (depth - low) * lanes +
    // lane.
    std::vector<double> loads_s = {};
    // Per StageLane: one above the layer of its next piece, which is one layer of a block; 0 if it
    // has none.
    std::vector<uint16_t> piece_top = {};
    std::vector<double> piece_s = {};  // per lane: seconds to load one layer of a block
    [[nodiscard]] double LoadSeconds(uint16_t depth, size_t lane, size_t lanes) const {
      return loads_s[static_cast<size_t>(depth - low) * lanes + lane];
    }
  };
  uint16_t layers = 1;
  size_t lanes = 0;
  std::vector<Chunk> chunks = {};
  // Seconds until the engine, at [0], and each StageLane, at [1 + lane], have finished what they
  // were given.
  std::vector<double> busy_s = {};
  double doubt = 0;  // relative uncertainty of computing compared with loading
};

struct EndgameAim {
  std::vector<uint16_t> depths = {};              // per chunk
  std::optional<size_t> compute = {};             // the chunk whose next layer to compute
  std::vector<std::optional<size_t>> loads = {};  // per lane, the chunk whose next piece to load
  // Per StageLane: load nothing yet, because it is still uncertain which load is right.
  std::vector<bool> waits = {};
};

// Returns true if `chunks` is above 0 and so many chunks of `layers` layers have at most
// kStaircasesMax staircases, few enough to try them all.
[[nodiscard]] bool IsEndgame(size_t chunks, uint16_t layers);

// REQUIRES: IsEndgame(game.chunks.size(), game.layers).
[[nodiscard]] EndgameAim Solve(const Endgame& game);

}  // namespace larder
