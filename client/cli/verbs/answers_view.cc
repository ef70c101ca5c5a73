#include "client/cli/verbs/answers_view.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/shell/table.h"
#include "storage/text.h"

namespace larder::cli {

Json ToJson(const std::vector<wire::BlockAnswer>& answers) {
  Json blocks = Json::array();
  for (const wire::BlockAnswer& answer : answers)
    blocks.push_back({{"digest", answer.digest.Hex()}, {"status", ToString(answer.status)}});
  return blocks;
}

ExitCode PrintAnswers(Shell& shell, const std::vector<wire::BlockAnswer>& answers, Json more,
                      Pending pending) {
  std::map<BlockStatus, size_t> counts;
  for (const wire::BlockAnswer& answer : answers) ++counts[answer.status];
  if (shell.json()) {
    more["blocks"] = ToJson(answers);
    shell.PrintJson(more);
  } else if (!answers.empty()) {
    Table table({{"DIGEST"}, {"STATUS"}});
    for (const wire::BlockAnswer& answer : answers)
      table.Add({answer.digest.Hex(), ToString(answer.status)});
    shell.Print(table.Format(shell.width()));
  }
  const bool all = std::all_of(counts.begin(), counts.end(), [pending](const auto& entry) {
    return entry.first == BlockStatus::kOk ||
           (entry.first == BlockStatus::kPending && pending == Pending::kComes);
  });
  if (all && answers.size() == 1) return ExitCode::kOk;
  shell.Say(absl::StrJoin(counts, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, FormatCount(entry.second), " ", ToString(entry.first));
  }));
  if (all) return ExitCode::kOk;
  if (counts.contains(BlockStatus::kPending) && pending == Pending::kUnanswered)
    shell.Say(
        "an engine did not answer in time, so it is unknown what it does about pending blocks");
  shell.SayNext(counts.contains(BlockStatus::kFull)
                    ? "larderctl status shows what takes the capacity; larderctl unpin ends pins"
                    : "larderctl watch --once lists what is stored");
  return ExitCode::kIncomplete;
}

}  // namespace larder::cli
