// larderctl move: moves or copies blocks between host memory and disk, and shows its progress.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/shell/progress_bar.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/block_options.h"
#include "client/cli/verbs/verbs.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

struct MoveOptions {
  BlockOptions blocks;
  std::string from, to;
  bool copy = false;
};

void Add(const wire::MoveProgress& part, wire::MoveProgress* sum) {
  sum->blocks += part.blocks;
  sum->blocks_done += part.blocks_done;
  sum->bytes += part.bytes;
  sum->bytes_done += part.bytes_done;
  sum->moved += part.moved;
  sum->missing += part.missing;
  sum->no_room += part.no_room;
  sum->kept_pinned += part.kept_pinned;
  sum->kept_in_use += part.kept_in_use;
}

void Print(Shell& shell, const wire::MoveProgress& sum) {
  const std::pair<const char*, uint64_t> counts[] = {{"blocks", sum.blocks},
                                                     {"done", sum.blocks_done},
                                                     {"moved", sum.moved},
                                                     {"missing", sum.missing},
                                                     {"no_room", sum.no_room},
                                                     {"kept_pinned", sum.kept_pinned},
                                                     {"kept_in_use", sum.kept_in_use},
                                                     {"bytes", sum.bytes.value()}};
  if (shell.json()) {
    Json out = Json::object();
    for (const auto& [name, count] : counts) out[name] = count;
    return shell.PrintJson(out);
  }
  std::vector<std::pair<std::string, std::string>> facts;
  for (const auto& [name, count] : counts) {
    if (count > 0 || facts.size() < 3)
      facts.emplace_back(absl::StrReplaceAll(name, {{"_", " "}}),
                         std::string(name) == "bytes" ? FormatBytes(static_cast<double>(count))
                                                      : FormatCount(count));
  }
  shell.Print(FormatFacts(facts, shell.width()));
}

ExitCode Move(const MoveOptions& options, Shell& shell) {
  if (options.from.empty() || options.to.empty())
    return shell.Fail(
        absl::InvalidArgumentError("--from and --to are missing: one is host, the other disk"));
  const auto parts = options.blocks.Parts(shell.interrupt());
  if (!parts.ok()) return shell.Fail(parts.status());
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  wire::MoveProgress sum;
  absl::Status status;
  {
    ProgressBar bar("move");
    for (const BlockOptions::Part& part : *parts) {
      const wire::MoveQuery query{.tenant = shell.options().tenant,
                                  .scope = part.scope,
                                  .blocks = part.blocks,
                                  .from = options.from == "host" ? Tier::kHost : Tier::kDisk,
                                  .to = options.to == "host" ? Tier::kHost : Tier::kDisk,
                                  .copy = options.copy};
      wire::MoveProgress latest;
      status = (*cache)->Move(
          query, shell.Limits(std::chrono::hours(24)), [&](const wire::MoveProgress& progress) {
            latest = progress;
            wire::MoveProgress now = sum;
            Add(latest, &now);
            bar.Show({now.blocks_done, now.blocks, now.bytes_done.value(), now.bytes.value()});
            return true;
          });
      Add(latest, &sum);
      if (!status.ok()) break;
    }
  }
  if (status.ok() || sum.blocks_done > 0) Print(shell, sum);
  if (!status.ok()) return shell.Fail(status);
  if (sum.no_room > 0) shell.SayNext("larderctl status shows what takes the memory and the disk");
  return sum.moved == sum.blocks ? ExitCode::kOk : ExitCode::kIncomplete;
}

}  // namespace

void AddMove(CommandTree& tree) {
  tree.Add({.name = "move",
            .summary = "moves or copies blocks from host memory to disk, or back",
            .about = "Blocks leave their old tier at the end, when their copy is in the new one; "
                     "pinned blocks and those in use stay in both. If the call is cut off, no "
                     "block is lost, and repeating the command does the rest.",
            .examples = {{"move --all --from host --to disk", "Before a restart."},
                         {"move --model my-model --content --from disk --to host --copy",
                          "Warms the pool."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<MoveOptions>();
             options->blocks.AddTo(verb, BlockOptions::Scopes::kEveryScope);
             verb.AddWord("--from", &options->from, {"host", "disk"}, "Tier that has the blocks.");
             verb.AddWord("--to", &options->to, {"host", "disk"}, "Tier to bring them to.");
             verb.AddFlag("--copy", &options->copy, "Keep the blocks in the old tier as well.");
             return [options](Shell& shell) { return Move(*options, shell); };
           });
}

}  // namespace larder::cli
