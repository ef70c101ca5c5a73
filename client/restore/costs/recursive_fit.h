// Fits y = sum of x[k] * factor[k] as observations arrive, by recursive least squares with
// forgetting.
//
// Everything is relative: all factors begin at 1, and most of their variance is common to all
// (because a machine that is slower than its profile is usually slower at everything).  An
// observation that is unlikely under the current fit counts little.  If the observation before it
// was also unlikely, and both are above or both below their predictions, the machine is taken to
// have changed, and the observation counts much.
// Ownership: a value.  Thread-safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace larder {

template <size_t N>
class RecursiveFit {
 public:
  using Vector = std::array<double, N>;

  // `doubt` is the relative standard deviation of the factors at the beginning; less than 0.01
  // counts as 0.01.
  explicit RecursiveFit(double doubt) : doubt_(std::max(doubt, kDoubtMin)) {
    factors_.fill(1);
    const double variance = doubt_ * doubt_;
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) spread_[i][j] = variance * (i == j ? 1 : kShared);
    }
  }

  [[nodiscard]] double Predict(const Vector& x) const {
    double y = 0;
    for (size_t i = 0; i < N; ++i) y += x[i] * factors_[i];
    return y;
  }
  // Returns the standard deviation of Predict(x), relative to Predict(x).
  [[nodiscard]] double Doubt(const Vector& x) const {
    return std::sqrt(std::max(Variance(x), 0.0)) / std::max(Predict(x), 1e-300);
  }
  [[nodiscard]] double factor(size_t i) const { return factors_[i]; }

  // REQUIRES: the sum of the elements of x is 1, so that y is about 1 if the initial factors were
  // right.
  void Observe(const Vector& x, double y) {
    for (auto& row : spread_) {
      for (double& entry : row) entry /= kMemory;
    }
    const double guess = Predict(x), error = y - guess;
    double noise = kNoise * std::max(guess, y);
    noise *= noise;
    const double likely = std::sqrt(Variance(x) + noise);
    if (std::abs(error) > kFar * likely) {
      const int side = error > 0 ? 1 : -1;
      if (side == strayed_) {
        Widen(error * error);
      } else {
        noise += error * error;
      }
      strayed_ = side;
    } else {
      strayed_ = 0;
    }
    Update(x, error, noise);
  }

 private:
  static constexpr double kShared = 0.9;   // the part of the variance that all factors share
  static constexpr double kMemory = 0.97;  // weight of an observation relative to the next one
  static constexpr double kNoise = 0.03;   // relative noise of a single observation
  static constexpr double kFar = 3;        // an error of more standard deviations is unlikely
  static constexpr double kDoubtMin = 0.01;
  static constexpr double kFactorMin = 1e-3;  // a cost is above 0

  [[nodiscard]] Vector Spread(const Vector& x) const {
    Vector out{};
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) out[i] += spread_[i][j] * x[j];
    }
    return out;
  }
  [[nodiscard]] double Variance(const Vector& x) const {
    const Vector spread = Spread(x);
    double sum = 0;
    for (size_t i = 0; i < N; ++i) sum += x[i] * spread[i];
    return sum;
  }
  void Widen(double variance) {
    for (auto& row : spread_) {
      for (double& entry : row) entry += variance;
    }
  }
  void Update(const Vector& x, double error, double noise) {
    const Vector spread = Spread(x);
    double total = noise;
    for (size_t i = 0; i < N; ++i) total += x[i] * spread[i];
    for (size_t i = 0; i < N; ++i) {
      factors_[i] = std::max(factors_[i] + spread[i] / total * error, kFactorMin);
      for (size_t j = 0; j < N; ++j) spread_[i][j] -= spread[i] * spread[j] / total;
    }
    Bound();
  }
  // Limits the doubt about each factor, which forgetting would otherwise increase without end if
  // the factor is never observed.
  void Bound() {
    const double most = 4 * std::max(doubt_ * doubt_, 0.01);
    for (size_t i = 0; i < N; ++i) {
      const double limit = most * std::max(1.0, factors_[i] * factors_[i]);
      if (spread_[i][i] <= limit) continue;
      const double shrink = std::sqrt(limit / spread_[i][i]);
      for (size_t j = 0; j < N; ++j) {
        spread_[i][j] *= shrink;
        spread_[j][i] *= shrink;
      }
    }
  }

  double doubt_;
  Vector factors_{};
  std::array<Vector, N> spread_{};
  int strayed_ = 0;  // 1 or -1: the last observation was far above or below its prediction
};

}  // namespace larder
