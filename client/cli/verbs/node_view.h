// What Admin.Stats says, for people and for programs.
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

// A metric by its name in docs/metrics.md, be it counter or gauge; 0: there is none.
[[nodiscard]] double MetricOf(const wire::NodeStats& stats, const std::string& name);
[[nodiscard]] bool HasDisk(const wire::NodeStats& stats);

[[nodiscard]] Json ToJson(const wire::NodeStats& stats);
// "pool", "812 MiB of 1 GiB stored, ..."
[[nodiscard]] std::vector<std::pair<std::string, std::string>> FactsOf(
    const wire::NodeStats& stats);

}  // namespace larder::cli
