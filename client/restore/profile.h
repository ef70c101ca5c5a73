// A Profile as a small file that people can read: TOML.
//
//   [engine]  model, layers, crossover_tokens, doubt
//   [compute] fixed_s, linear_s, quadratic_s, layer_shares (optional)
//   [[channel]] name, bytes_per_s            in the order of their ChannelIds
//
// Unknown keys are errors with their line, as are numbers that no machine has.
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

// The file's first line names it; "profile.toml:7: ...: what to do" in errors begins with `path`.
[[nodiscard]] absl::StatusOr<Profile> ParseProfile(std::string_view text, const std::string& path);
[[nodiscard]] std::string FormatProfile(const Profile& profile);

// NOT_FOUND: there is no such file.
[[nodiscard]] absl::StatusOr<Profile> ReadProfile(const std::string& path);
// All of it or nothing: written beside and renamed.
[[nodiscard]] absl::Status WriteProfile(const Profile& profile, const std::string& path);

}  // namespace larder
