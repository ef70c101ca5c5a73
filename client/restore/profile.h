// Reads and writes a Profile as a small TOML file that people can read.
//
//   [engine]  model, layers, crossover_tokens, doubt
//   [compute] fixed_s, linear_s, quadratic_s, layer_shares (optional)
//   [[channel]] name, bytes_per_s            in the order of their ChannelIds
//
// An unknown key is an error, and so is a number that no machine has; the error names the line.
// Thread-safety: functions without state.  Limits: files of 1 MiB, kStageLayersMax layers,
// kChannelsMax channels.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/restore/cost_model.h"

namespace larder {

inline constexpr size_t kChannelsMax = 256;

// Errors begin with `path` and the line: "profile.toml:7: layers is missing; ...".
[[nodiscard]] absl::StatusOr<Profile> ParseProfile(std::string_view text, const std::string& path);
[[nodiscard]] std::string FormatProfile(const Profile& profile);

// Returns NotFound if there is no such file or it is out of reach, InvalidArgument if it is
// malformed, Unavailable if reading fails.
[[nodiscard]] absl::StatusOr<Profile> ReadProfile(const std::string& path);
// Writes another file beside it and renames that, so `path` is replaced as a whole or not at all.
[[nodiscard]] absl::Status WriteProfile(const Profile& profile, const std::string& path);

}  // namespace larder
