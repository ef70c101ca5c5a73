// Costs are initial costs, mostly those of the profile, times factors; recursive_fit.h says how the
// factors are learnt.
#include "client/restore/costs/cost_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace larder {
namespace {

// A part of the cost that is 0 in the profile can still be learnt: it starts above 0, computed from
// this share of the time of a typical step.
constexpr double kTrace = 1e-3;
constexpr double kTypicalTokens = 512, kLongTokens = 131'072;

ComputeCost WithoutZeros(ComputeCost cost) {
  const TokenRange typical{0, static_cast<uint32_t>(kTypicalTokens)};
  const double step_s = std::max(cost.Seconds(typical), 1e-9);
  if (cost.fixed_s <= 0) cost.fixed_s = step_s * kTrace;
  if (cost.linear_s <= 0) cost.linear_s = step_s / kTypicalTokens * kTrace;
  if (cost.quadratic_s <= 0) cost.quadratic_s = step_s / kTypicalTokens / kLongTokens * kTrace;
  return cost;
}

std::vector<double> ShareEnds(const Profile& profile) {
  std::vector<double> ends(profile.layers + 1u, 0);
  const bool alike = profile.layer_shares.size() != profile.layers;
  for (size_t l = 0; l < profile.layers; ++l) {
    ends[l + 1] = ends[l] + (alike ? 1 : profile.layer_shares[l]);
  }
  for (double& end : ends) end /= ends.back();
  return ends;
}

}  // namespace

CostModel::CostModel(Profile profile)
    : profile_(std::move(profile)),
      basis_(WithoutZeros(profile_.compute)),
      share_ends_(ShareEnds(profile_)),
      compute_(profile_.doubt) {
  for (const ChannelCost& channel : profile_.channels) {
    channels_.push_back({channel.bytes_per_s, RecursiveFit<1>(profile_.doubt)});
  }
}

std::array<double, 3> CostModel::Parts(TokenRange tokens) const {
  const double a = tokens.begin, b = tokens.end;
  return {basis_.fixed_s, basis_.linear_s * (b - a), basis_.quadratic_s * (b - a) * (b + a) / 2};
}

double CostModel::Share(StageLayers layers) const {
  return share_ends_[layers.end] - share_ends_[layers.begin];
}

double CostModel::ComputeSeconds(TokenRange tokens) const {
  return compute_.Predict(Parts(tokens));
}

double CostModel::ComputeSeconds(TokenRange tokens, StageLayers layers) const {
  return ComputeSeconds(tokens) * Share(layers);
}

double CostModel::ComputeSeconds(TokenRange tokens, StageLayers layers, uint32_t chunk) const {
  std::array<double, 3> parts = Parts(tokens);
  parts[0] *= std::max(1.0, static_cast<double>(tokens.end - tokens.begin) / chunk);
  return compute_.Predict(parts) * Share(layers);
}

double CostModel::LoadSeconds(ChannelId channel, double bytes) const {
  const auto index = static_cast<size_t>(channel);
  if (index == 0 || index > channels_.size()) return bytes / kUnknownRate;
  const Channel& c = channels_[index - 1];
  return bytes / c.bytes_per_s * c.fit.factor(0);
}

CostModel::Channel& CostModel::At(ChannelId channel) {
  while (channels_.size() < static_cast<size_t>(channel)) {
    channels_.push_back({kUnknownRate, RecursiveFit<1>(1)});
  }
  return channels_[static_cast<size_t>(channel) - 1];
}

void CostModel::ObserveCompute(TokenRange tokens, StageLayers layers, double seconds) {
  const double share = Share(layers);
  if (tokens.end <= tokens.begin || share <= 0 || seconds <= 0) return;
  Observe(Parts(tokens), seconds / share);
}

void CostModel::ObserveStep(std::span<const TokenRange> ranges, uint32_t decode_tokens,
                            double seconds) {
  if (seconds <= 0) return;
  std::array<double, 3> parts = {basis_.fixed_s, basis_.linear_s * decode_tokens, 0};
  for (const TokenRange tokens : ranges) {
    const std::array<double, 3> of_range = Parts(tokens);
    parts[1] += of_range[1];
    parts[2] += of_range[2];
  }
  Observe(parts, seconds);
}

void CostModel::Observe(std::array<double, 3> parts, double seconds) {
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  for (double& part : parts) part /= sum;
  compute_.Observe(parts, seconds / sum);
}

void CostModel::ObserveLoad(ChannelId channel, double bytes, double seconds) {
  if (channel == ChannelId::kNowhere || bytes <= 0 || seconds <= 0) return;
  Channel& c = At(channel);
  c.fit.Observe({1}, seconds * c.bytes_per_s / bytes);
}

void CostModel::SetRate(ChannelId channel, double bytes_per_s) {
  if (channel == ChannelId::kNowhere || bytes_per_s <= 0) return;
  At(channel) = {bytes_per_s, RecursiveFit<1>(profile_.doubt)};
}

double CostModel::ComputeDoubt(TokenRange tokens) const { return compute_.Doubt(Parts(tokens)); }

double CostModel::LoadDoubt(ChannelId channel) const {
  const auto index = static_cast<size_t>(channel);
  if (index == 0 || index > channels_.size()) return 1;
  return channels_[index - 1].fit.Doubt({1});
}

ComputeCost CostModel::compute() const {
  return {basis_.fixed_s * compute_.factor(0), basis_.linear_s * compute_.factor(1),
          basis_.quadratic_s * compute_.factor(2)};
}

Profile CostModel::Learnt() const {
  Profile learnt = profile_;
  learnt.compute = compute();
  learnt.channels.resize(channels_.size());
  for (size_t i = 0; i < channels_.size(); ++i) {
    learnt.channels[i].bytes_per_s = channels_[i].bytes_per_s / channels_[i].fit.factor(0);
  }
  return learnt;
}

}  // namespace larder
