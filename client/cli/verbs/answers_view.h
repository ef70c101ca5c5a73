// What became of each name that a verb was asked about.
//
// Thread-safety: pure functions, but for what they print.
#pragma once

#include <string>
#include <vector>

#include "client/cli/shell/shell.h"
#include "proto/messages/messages.h"

namespace larder::cli {

// What PENDING means: it is done, and comes; or an engine was asked, and has not answered.
enum class Pending { kComes, kUnanswered };

// Prints them, with `more` in front of the JSON, and says in a sentence how many there are of each
// status.  kIncomplete unless all are done or come.
[[nodiscard]] ExitCode PrintAnswers(Shell& shell, const std::vector<wire::BlockAnswer>& answers,
                                    Json more = Json::object(), Pending pending = Pending::kComes);
[[nodiscard]] Json ToJson(const std::vector<wire::BlockAnswer>& answers);

}  // namespace larder::cli
