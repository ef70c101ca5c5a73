// Predicts in seconds what computing and loading cost, at first from a profile, later from what it
// has observed.
//
// Computing tokens [a, b) through all layers costs fixed + linear * (b - a) + quadratic * (b^2 -
// a^2) / 2.  Computing through some of the layers costs their share of that time.  Loading costs
// bytes / rate of the channel.  The model does not know whether the engine is busy with other work,
// nor how long a load waits in its channel.
// Ownership: a value.  Thread-safety: none.
// Limits: LoadSeconds uses kUnknownRate for a channel that the profile lacks, until it is observed
// or SetRate is called.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/restore/costs/layers.h"
#include "client/restore/costs/profile.h"
#include "client/restore/costs/recursive_fit.h"
#include "storage/types.h"

namespace larder {

class CostModel {
 public:
  explicit CostModel(Profile profile);

  [[nodiscard]] double ComputeSeconds(TokenRange tokens) const;
  // `layers` count within the model, not within a stage.
  [[nodiscard]] double ComputeSeconds(TokenRange tokens, StageLayers layers) const;
  // Returns the seconds of computing `tokens` through `layers`, which count within the model, in
  // steps of `chunk` tokens, each of which has the fixed cost.  The number of steps is not rounded,
  // but at least 1.
  [[nodiscard]] double ComputeSeconds(TokenRange tokens, StageLayers layers, uint32_t chunk) const;
  [[nodiscard]] double LoadSeconds(ChannelId channel, double bytes) const;
  [[nodiscard]] double Share(StageLayers layers) const;

  void ObserveCompute(TokenRange tokens, StageLayers layers, double seconds);
  // Observes a step that computed several ranges through all layers and also decoded
  // `decode_tokens`.
  void ObserveStep(std::span<const TokenRange> ranges, uint32_t decode_tokens, double seconds);
  void ObserveLoad(ChannelId channel, double bytes, double seconds);
  // Sets the channel's rate, and forgets what was observed of the channel before.  Does nothing if
  // the rate is not above 0.
  void SetRate(ChannelId channel, double bytes_per_s);

  // Relative standard deviation of ComputeSeconds(tokens).
  [[nodiscard]] double ComputeDoubt(TokenRange tokens) const;
  // Relative standard deviation of LoadSeconds; 1 for a channel of which no rate is known.
  [[nodiscard]] double LoadDoubt(ChannelId channel) const;

  [[nodiscard]] ComputeCost compute() const;  // as learnt so far
  // Returns what was learnt so far, as a profile from which a later CostModel can start.
  [[nodiscard]] Profile Learnt() const;
  [[nodiscard]] uint16_t layers() const { return profile_.layers; }

  static constexpr double kUnknownRate = 1e9;  // B/s

 private:
  struct Channel {
    double bytes_per_s;
    RecursiveFit<1> fit;
  };
  [[nodiscard]] std::array<double, 3> Parts(TokenRange tokens) const;
  void Observe(std::array<double, 3> parts, double seconds);
  Channel& At(ChannelId channel);

  Profile profile_;
  ComputeCost basis_;  // the profile's, but no part is 0, because no factor could change it
  std::vector<double> share_ends_;  // share_ends_[l] is the share of layers [0, l)
  RecursiveFit<3> compute_;
  std::vector<Channel> channels_;
};

}  // namespace larder
