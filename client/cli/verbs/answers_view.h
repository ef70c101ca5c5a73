// Prints what became of each block that the user named.
//
// Thread-safety: pure functions, except for what they print.
#pragma once

#include <string>
#include <vector>

#include "client/cli/shell/shell.h"
#include "proto/messages/messages.h"

namespace larder::cli {

// What the status PENDING of a block means for a verb.  kComes: the daemon has accepted the call
// and is bringing the block into the tier.  kUnanswered: an engine was asked and has not answered.
enum class Pending { kComes, kUnanswered };

// Prints the answers as a table, or with -o json as JSON, after the fields of `more`, and usually a
// summary to standard error.  Returns kOk if every block is OK or, with kComes, PENDING; otherwise
// kIncomplete.
[[nodiscard]] ExitCode PrintAnswers(Shell& shell, const std::vector<wire::BlockAnswer>& answers,
                                    Json more = Json::object(), Pending pending = Pending::kComes);
[[nodiscard]] Json ToJson(const std::vector<wire::BlockAnswer>& answers);

}  // namespace larder::cli
