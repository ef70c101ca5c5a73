// larderctl compress: encodes blocks in place, or decodes them, and shows its progress.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/shell/progress_bar.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/answers_view.h"
#include "client/cli/verbs/block_options.h"
#include "client/cli/verbs/verbs.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

struct CompressOptions {
  BlockOptions blocks;
  std::string tier = "all", codec = "lossless";
  bool dry_run = false;
};

void Add(const wire::CompressProgress& part, wire::CompressProgress* sum) {
  sum->blocks += part.blocks;
  sum->blocks_done += part.blocks_done;
  sum->bytes_before += part.bytes_before;
  sum->bytes_after += part.bytes_after;
  sum->changed += part.changed;
  sum->unchanged += part.unchanged;
  sum->missing += part.missing;
  sum->kept_in_use += part.kept_in_use;
  sum->no_room += part.no_room;
  sum->unsupported += part.unsupported;
  sum->answers.insert(sum->answers.end(), part.answers.begin(), part.answers.end());
}

void Print(const wire::CompressProgress& sum, bool dry_run, Shell& shell) {
  const std::pair<const char*, uint64_t> counts[] = {
      {"blocks", sum.blocks},   {"done", sum.blocks_done},
      {"changed", sum.changed}, {"unchanged", sum.unchanged},
      {"missing", sum.missing}, {"kept_in_use", sum.kept_in_use},
      {"no_room", sum.no_room}, {"unsupported", sum.unsupported}};
  if (shell.json()) {
    Json out = Json{{"dry_run", dry_run},
                    {"bytes_before", sum.bytes_before.value()},
                    {"bytes_after", sum.bytes_after.value()},
                    {"answers", ToJson(sum.answers)}};
    for (const auto& [name, count] : counts) out[name] = count;
    return shell.PrintJson(out);
  }
  std::vector<std::pair<std::string, std::string>> facts;
  for (const auto& [name, count] : counts) {
    if (count > 0 || facts.size() < 3)
      facts.emplace_back(absl::StrReplaceAll(name, {{"_", " "}}), FormatCount(count));
  }
  const auto before = static_cast<double>(sum.bytes_before.value());
  const auto after = static_cast<double>(sum.bytes_after.value());
  facts.emplace_back("size", absl::StrCat(FormatBytes(before), " before, ", FormatBytes(after),
                                          " after (", FormatShare(after, before), ")"));
  shell.Print(FormatFacts(facts, shell.width()));
}

absl::Status Ask(const CompressOptions& options, const std::vector<BlockOptions::Part>& parts,
                 RpcStub& cache, Shell& shell, wire::CompressProgress* sum) {
  ProgressBar bar("compress");
  for (const BlockOptions::Part& part : parts) {
    const wire::CompressQuery query{
        .tenant = shell.options().tenant,
        .scope = part.scope,
        .blocks = part.blocks,
        .tiers = TiersNamed(options.tier),
        .codec = options.codec == "lossless" ? Codec::kLossless : Codec::kIdentity,
        .dry_run = options.dry_run};
    wire::CompressProgress latest;
    const absl::Status status = cache.Compress(
        query, shell.Limits(std::chrono::hours(24)), [&](const wire::CompressProgress& progress) {
          latest = progress;
          bar.Show({sum->blocks_done + latest.blocks_done, sum->blocks + latest.blocks, 0, 0});
          return true;
        });
    Add(latest, sum);
    LARDER_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

ExitCode Compress(const CompressOptions& options, Shell& shell) {
  const auto parts = options.blocks.Parts(shell.interrupt());
  if (!parts.ok()) return shell.Fail(parts.status());
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  wire::CompressProgress sum;
  const absl::Status status = Ask(options, *parts, **cache, shell, &sum);
  if (status.ok() || sum.blocks_done > 0) Print(sum, options.dry_run, shell);
  if (!status.ok()) return shell.Fail(status);
  const auto missing = static_cast<uint64_t>(
      std::ranges::count(sum.answers, BlockStatus::kMissing, &wire::BlockAnswer::status));
  if (missing > 0) {
    shell.Say(absl::StrCat(FormatCount(missing), " of ", FormatCount(sum.answers.size()),
                           " named blocks are missing"));
    shell.SayNext("larderctl watch --once lists what is stored");
  }
  if (options.dry_run) shell.Say("dry run: nothing was changed");
  if (sum.kept_in_use > 0)
    shell.SayNext("the same command again, once engines have released the blocks in use");
  if (sum.no_room > 0) shell.SayNext("larderctl status shows what takes the memory and the disk");
  return missing == 0 && sum.changed + sum.unchanged == sum.blocks ? ExitCode::kOk
                                                                   : ExitCode::kIncomplete;
}

}  // namespace

void AddCompress(CommandTree& tree) {
  tree.Add({.name = "compress",
            .summary = "encodes blocks in place, or decodes them",
            .about = "Engines read the same bytes afterwards. A block in host memory is decoded at "
                     "each read of an engine that does not take encoded blocks, and a block on "
                     "disk when it is brought back. If the call is cut off, what it has done stays "
                     "done, and repeating the command does the rest.",
            .examples = {{"compress --all --tier disk --dry-run", "What it would save."},
                         {"compress --all --tier disk", "Fits more blocks on the same disk."},
                         {"compress --all --codec identity", "Decodes them again."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<CompressOptions>();
             options->blocks.AddTo(verb, BlockOptions::Scopes::kEveryScope);
             verb.AddWord("--tier", &options->tier, {"all", "host", "disk", "device"},
                          "Tier whose blocks are encoded; copies in other tiers stay as they are.");
             verb.AddWord("--codec", &options->codec, {"lossless", "identity"},
                          "Codec of the blocks afterwards; identity decodes them.");
             verb.AddFlag("-n,--dry-run", &options->dry_run, "Only report what would be done.");
             return [options](Shell& shell) { return Compress(*options, shell); };
           });
}

}  // namespace larder::cli
