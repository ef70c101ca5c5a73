// clear: removes blocks.
#include "absl/strings/str_cat.h"
#include "client/cli/shell/progress_bar.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/answers_view.h"
#include "client/cli/verbs/block_options.h"
#include "client/cli/verbs/verbs.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

struct ClearOptions {
  BlockOptions blocks;
  std::string tier = "all";
  bool pinned = false, dry_run = false, yes = false;
};

void Add(const wire::ClearResult& part, wire::ClearResult* sum) {
  sum->host.blocks += part.host.blocks;
  sum->host.bytes += part.host.bytes;
  sum->disk.blocks += part.disk.blocks;
  sum->disk.bytes += part.disk.bytes;
  sum->device.blocks += part.device.blocks;
  sum->unanswered += part.unanswered;
  sum->leased += part.leased;
  sum->kept_pinned += part.kept_pinned;
  sum->kept_in_use += part.kept_in_use;
  sum->pins_ended += part.pins_ended;
  sum->blocks.insert(sum->blocks.end(), part.blocks.begin(), part.blocks.end());
}

absl::Status Ask(const ClearOptions& options, const std::vector<BlockOptions::Part>& parts,
                 bool dry_run, Shell& shell, wire::ClearResult* sum) {
  LARDER_ASSIGN_OR_RETURN(RpcStub* const cache, shell.Cache());
  ProgressBar bar("clear");
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts.size() > 1) bar.Show({i, parts.size(), 0, 0});
    const wire::ClearQuery query{.tenant = shell.options().tenant,
                                 .scope = parts[i].scope,
                                 .blocks = parts[i].blocks,
                                 .tiers = TiersNamed(options.tier),
                                 .pinned = options.pinned,
                                 .dry_run = dry_run};
    LARDER_ASSIGN_OR_RETURN(const wire::ClearResult cleared,
                            cache->Clear(query, shell.Limits(std::chrono::minutes(10))));
    Add(cleared, sum);
  }
  return absl::OkStatus();
}

std::string TierText(const wire::ClearResult::OfTier& tier) {
  return absl::StrCat(FormatCount(tier.blocks), " blocks, ",
                      FormatBytes(static_cast<double>(tier.bytes.value())));
}

ExitCode Print(const wire::ClearResult& sum, bool dry_run, Shell& shell) {
  if (shell.json()) {
    shell.PrintJson(Json{{"dry_run", dry_run},
                         {"host", {{"blocks", sum.host.blocks}, {"bytes", sum.host.bytes.value()}}},
                         {"disk", {{"blocks", sum.disk.blocks}, {"bytes", sum.disk.bytes.value()}}},
                         {"device", {{"blocks", sum.device.blocks}}},
                         {"leased", sum.leased},
                         {"kept_pinned", sum.kept_pinned},
                         {"kept_in_use", sum.kept_in_use},
                         {"pins_ended", sum.pins_ended},
                         {"unanswered", sum.unanswered},
                         {"blocks", ToJson(sum.blocks)}});
  } else {
    std::vector<std::pair<std::string, std::string>> facts = {{"host", TierText(sum.host)},
                                                              {"disk", TierText(sum.disk)}};
    for (const auto& [name, count] : {std::pair{"device blocks", sum.device.blocks},
                                      {"leased", sum.leased},
                                      {"kept, pinned", sum.kept_pinned},
                                      {"kept, in use", sum.kept_in_use},
                                      {"pins ended", sum.pins_ended},
                                      {"unanswered", sum.unanswered}}) {
      if (count > 0) facts.emplace_back(name, FormatCount(count));
    }
    shell.Print(FormatFacts(facts, shell.width()));
  }
  size_t missing = 0;
  for (const wire::BlockAnswer& answer : sum.blocks)
    missing += answer.status == BlockStatus::kMissing ? 1 : 0;
  if (missing > 0) {
    shell.Say(absl::StrCat(FormatCount(missing), " of ", FormatCount(sum.blocks.size()),
                           " named blocks are missing"));
    shell.SayNext("larderctl watch --once lists what is stored");
  }
  if (sum.kept_pinned > 0)
    shell.SayNext("the same command with --pinned clears pinned blocks too; those in use stay");
  if (sum.unanswered > 0) {
    shell.Say(
        "an engine takes no directives or did not answer in time, so its blocks may still be on "
        "its device");
    shell.SayNext("larderctl watch --tier device --once lists the blocks that engines still have");
  }
  const bool all = missing + sum.kept_pinned + sum.kept_in_use + sum.unanswered == 0;
  return all ? ExitCode::kOk : ExitCode::kIncomplete;
}

ExitCode Clear(const ClearOptions& options, Shell& shell) {
  const auto parts = options.blocks.Parts(shell.interrupt());
  if (!parts.ok()) return shell.Fail(parts.status());
  wire::ClearResult would;
  absl::Status status;
  if (options.dry_run || !options.yes) status = Ask(options, *parts, true, shell, &would);
  if (!status.ok()) return shell.Fail(status);
  if (options.dry_run) {
    const ExitCode code = Print(would, true, shell);
    shell.Say("dry run: nothing was changed");
    return code;
  }
  // If there is nothing to clear, there is nothing to confirm.
  const bool nothing =
      would.host.blocks + would.disk.blocks + would.device.blocks + would.pins_ended == 0;
  if (nothing && !options.yes) return Print(would, false, shell);
  status = shell.Confirm(
      absl::StrCat("Host: ", TierText(would.host), "; disk: ", TierText(would.disk),
                   would.device.blocks == 0
                       ? ""
                       : absl::StrCat("; devices: ", FormatCount(would.device.blocks), " blocks"),
                   ". Clear them?"),
      options.yes);
  wire::ClearResult done;
  if (status.ok()) status = Ask(options, *parts, false, shell, &done);
  return status.ok() ? Print(done, false, shell) : shell.Fail(status);
}

}  // namespace

void AddClear(CommandTree& tree) {
  tree.Add(
      {.name = "clear",
       .summary = "removes blocks",
       .about = "The names of the blocks vanish at once; an engine reads what it has leased "
                "to the end. Pinned blocks stay unless --pinned is given. Asks for "
                "confirmation first, and refuses if there is no terminal to ask at.",
       .examples = {{"clear --model my-model --content --dry-run", "Reports, and changes nothing."},
                    {"clear --model my-model --prefix @prompt.ids --yes",
                     "A prompt, and every prompt that begins with it."},
                    {"clear --writer-uid 1000 --dry-run", "What one user's engines stored."},
                    {"watch --once | larderctl clear --yes -", "All blocks that are stored now."}}},
      [](VerbOptions& verb) -> RunVerb {
        const auto options = std::make_shared<ClearOptions>();
        options->blocks.AddTo(verb, BlockOptions::Scopes::kEveryScope);
        verb.AddWord("--tier", &options->tier, {"all", "host", "disk", "device"},
                     "Tier to clear; all is host and disk. Copies in other tiers stay.");
        verb.AddFlag("--pinned", &options->pinned,
                     "Clear pinned and prefetched blocks as well, and end their pins.");
        verb.AddFlag("-n,--dry-run", &options->dry_run, "Only report what would be done.");
        verb.AddFlag("-y,--yes", &options->yes, "Do not ask for confirmation.");
        return [options](Shell& shell) { return Clear(*options, shell); };
      });
}

}  // namespace larder::cli
