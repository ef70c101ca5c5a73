// What Admin.Stats returns, as text for people and as JSON for programs.
//
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/shell/shell.h"
#include "proto/messages/admin_messages.h"

namespace larder::cli {

// Returns the counter or gauge of this name (docs/metrics.md), or 0 if there is none.
[[nodiscard]] double MetricOf(const wire::NodeStats& stats, const std::string& name);
[[nodiscard]] bool HasDisk(const wire::NodeStats& stats);

[[nodiscard]] Json ToJson(const wire::NodeStats& stats);
// Pairs such as "pool" and "812 MiB, 3 % stored, ...".
[[nodiscard]] std::vector<std::pair<std::string, std::string>> FactsOf(
    const wire::NodeStats& stats);

}  // namespace larder::cli
