// How fast something runs over time: a piecewise constant factor.
//
// Ownership: a value.  Thread-safety: concurrent reads are safe.
#pragma once

#include <limits>
#include <vector>

namespace larder::bench {

class Speed {
 public:
  Speed() = default;  // always 1
  // Sets the factor from `begin_s` until the next piece.
  // REQUIRES: calls in order of time; factor > 0.
  void From(double begin_s, double factor) { pieces_.push_back({begin_s, factor}); }

  [[nodiscard]] double At(double now_s) const {
    double factor = 1;
    for (const Piece& piece : pieces_) {
      if (piece.begin_s > now_s) break;
      factor = piece.factor;
    }
    return factor;
  }
  // When work ends that takes `seconds` at factor 1 and begins at `now_s`.
  [[nodiscard]] double End(double now_s, double seconds) const {
    double factor = 1;
    for (const Piece& piece : pieces_) {
      if (piece.begin_s > now_s) {
        const double does = (piece.begin_s - now_s) * factor;
        if (does >= seconds) return now_s + seconds / factor;
        seconds -= does;
        now_s = piece.begin_s;
      }
      factor = piece.factor;
    }
    return now_s + seconds / factor;
  }
  // The work done between the two times, in seconds at factor 1.
  [[nodiscard]] double Work(double begin_s, double end_s) const {
    double work = 0, factor = 1, from = begin_s;
    for (const Piece& piece : pieces_) {
      if (piece.begin_s >= end_s) break;
      if (piece.begin_s > from) {
        work += (piece.begin_s - from) * factor;
        from = piece.begin_s;
      }
      factor = piece.factor;
    }
    return work + (end_s - from) * factor;
  }

 private:
  struct Piece {
    double begin_s, factor;
  };
  std::vector<Piece> pieces_;
};

}  // namespace larder::bench
