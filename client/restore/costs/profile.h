// What computing and loading cost on a machine, and a small TOML file for it that people can read.
//
//   [engine]  model, layers, crossover_tokens, doubt
//   [compute] fixed_s, linear_s, quadratic_s, layer_shares (optional)
//   [[channel]] name, bytes_per_s            in the order of their ChannelIds
//
// An unknown key is an error, and so is a number outside of its range; the error names the line.
// Ownership: values.  Thread-safety: functions without state.
// Limits: files of 1 MiB, kStageLayersMax layers, kChannelsMax channels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/types.h"

namespace larder {

inline constexpr size_t kChannelsMax = 256;

// Names a channel: 1 is the first of Profile::channels, and a CostModel also takes numbers beyond
// them.  kNowhere is for a block that is not stored.
enum class ChannelId : uint16_t { kNowhere = 0 };

struct ComputeCost {
  double fixed_s = 0;      // per step, however few tokens it has
  double linear_s = 0;     // per token
  double quadratic_s = 0;  // per token, for each token before it
  [[nodiscard]] double Seconds(TokenRange tokens) const {
    const double a = tokens.begin, b = tokens.end;
    return fixed_s + linear_s * (b - a) + quadratic_s * (b - a) * (b + a) / 2;
  }
};

struct ChannelCost {
  std::string name;  // "pool", "disk", "peer:10.0.0.2"
  double bytes_per_s = 0;
};

// What computing and loading cost for a model on a machine: as measured before any restore, or as
// learnt from restores (CostModel::Learnt).
struct Profile {
  std::string model = {};
  uint16_t layers = 1;
  ComputeCost compute = {};
  std::vector<double> layer_shares = {};   // each layer's share of a step's time; empty: all equal
  std::vector<ChannelCost> channels = {};  // ChannelId 1, 2, ...
  uint32_t crossover_tokens = 0;           // for shorter prefixes layer-wise plans were faster
  // Relative standard deviation of the costs.  Use 0.05 to 0.1 if they were measured on this
  // machine, 0.3 if on another one of the same kind.
  double doubt = 0.15;
};

// Returns InvalidArgument for a malformed profile; the message begins with `path`, which is not
// read, and the line: "profile.toml:7: layers is missing; ...".
[[nodiscard]] absl::StatusOr<Profile> ParseProfile(std::string_view text, const std::string& path);
[[nodiscard]] std::string FormatProfile(const Profile& profile);

// Returns NotFound if the file does not exist, InvalidArgument if it is malformed or larger than
// 1 MiB, or another error.
[[nodiscard]] absl::StatusOr<Profile> ReadProfile(const std::string& path);
// Writes `path`.new and renames it to `path`, so that no reader sees a part of the profile; the
// file is not synced.  If writing or renaming fails, returns an error and leaves `path` as it was.
[[nodiscard]] absl::Status WriteProfile(const Profile& profile, const std::string& path);

}  // namespace larder
