// What computing and loading cost, in seconds: from a profile at first, from what was seen later.
//
// Computing tokens [a, b) through all layers costs fixed + linear * (b - a) + quadratic * (b^2 -
// a^2) / 2: the attention of a token looks at all before it.  A part of the layers costs its share.
// Loading costs bytes / rate of the channel.  Does not know whether the engine is busy with
// something else, nor how long a load waits in its channel: that is the scheduler's.
// Ownership: a value.  Thread-safety: none.
// Limits: channels beyond the profile's are taken in when first heard of; LoadSeconds of an unknown
// one is kUnknownRate's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/restore/layers.h"
#include "client/restore/recursive_fit.h"
#include "storage/types.h"

namespace larder {

// A channel, counted from 1 by whoever drives the scheduler; 0 is nowhere.
enum class ChannelId : uint16_t { kNowhere = 0 };

struct ComputeCost {
  double fixed_s = 0;      // a step, however few its tokens
  double linear_s = 0;     // a token
  double quadratic_s = 0;  // a token, per token before it
  [[nodiscard]] double Seconds(TokenRange tokens) const {
    const double a = tokens.begin, b = tokens.end;
    return fixed_s + linear_s * (b - a) + quadratic_s * (b - a) * (b + a) / 2;
  }
};

struct ChannelCost {
  std::string name;  // "pool", "disk", "peer:10.0.0.2"
  double bytes_per_s = 0;
};

// What an offline measurement says of a machine and a model.
struct Profile {
  std::string model = {};
  uint16_t layers = 1;
  ComputeCost compute = {};
  std::vector<double> layer_shares = {};   // of a step's time, per layer; empty: all alike
  std::vector<ChannelCost> channels = {};  // ChannelId 1, 2, ...
  uint32_t crossover_tokens = 0;           // below it layer-wise was the faster
  double doubt = 0.15;                     // relative; a machine at hand 0.05, one of the kind 0.3
};

class CostModel {
 public:
  explicit CostModel(Profile profile);

  [[nodiscard]] double ComputeSeconds(TokenRange tokens) const;
  // `layers` of the model, not of a stage.
  [[nodiscard]] double ComputeSeconds(TokenRange tokens, StageLayers layers) const;
  // The same in steps of `chunk` tokens, more than one without rounding to whole ones.
  [[nodiscard]] double ComputeSeconds(TokenRange tokens, StageLayers layers, uint32_t chunk) const;
  [[nodiscard]] double LoadSeconds(ChannelId channel, double bytes) const;
  [[nodiscard]] double Share(StageLayers layers) const;

  void ObserveCompute(TokenRange tokens, StageLayers layers, double seconds);
  // A step of several ranges, through all layers, and of tokens that were decoded beside them.
  void ObserveStep(std::span<const TokenRange> ranges, uint32_t decode_tokens, double seconds);
  void ObserveLoad(ChannelId channel, double bytes, double seconds);
  // The channel's rate is now this; what was seen before says nothing more.
  void SetRate(ChannelId channel, double bytes_per_s);

  // Relative standard deviation of what the two above answer.
  [[nodiscard]] double ComputeDoubt(TokenRange tokens) const;
  [[nodiscard]] double LoadDoubt(ChannelId channel) const;

  [[nodiscard]] ComputeCost compute() const;  // as learnt by now
  // As learnt by now; what a later start may begin with.
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
  ComputeCost basis_;  // the profile's, no part of it zero: what is zero could not be learnt
  std::vector<double> share_ends_;  // share_ends_[l]: of layers [0, l)
  RecursiveFit<3> compute_;
  std::vector<Channel> channels_;
};

}  // namespace larder
