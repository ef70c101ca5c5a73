// larderctl prefetch, pin, unpin: which blocks a tier keeps, and for how long.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/verbs/answers_view.h"
#include "client/cli/verbs/block_options.h"
#include "client/cli/verbs/verbs.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

constexpr char kOwner[] = "larderctl";

struct PinOptions {
  BlockOptions blocks;
  std::string owner = kOwner, tier = "host";
  std::chrono::milliseconds ttl{0};
  bool all = false;  // --all of unpin
};

Pending PendingOf(Tier tier) {
  return tier == Tier::kDevice ? Pending::kUnanswered : Pending::kComes;
}

// Calls `ask` for one BlockOptions::Part after the other, and gathers the answers.  Returns the
// first error.
template <class Ask>
absl::StatusOr<std::vector<wire::BlockAnswer>> AskParts(const PinOptions& options, Shell& shell,
                                                        const Ask& ask) {
  LARDER_ASSIGN_OR_RETURN(const std::vector<BlockOptions::Part> parts,
                          options.blocks.Parts(shell.interrupt()));
  LARDER_ASSIGN_OR_RETURN(RpcStub* const cache, shell.Cache());
  std::vector<wire::BlockAnswer> all;
  for (const BlockOptions::Part& part : parts) {
    LARDER_ASSIGN_OR_RETURN(std::vector<wire::BlockAnswer> some, ask(*cache, part.blocks));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

ExitCode Prefetch(const PinOptions& options, Shell& shell) {
  wire::PrefetchQuery query;
  query.tenant = shell.options().tenant;
  query.ttl = options.ttl.count() > 0 ? options.ttl : wire::kPrefetchTtlDefault;
  const auto answers =
      AskParts(options, shell, [&](RpcStub& cache, const wire::BlockSelection& blocks) {
        query.blocks = blocks;
        return cache.Prefetch(query, shell.Limits());
      });
  return answers.ok() ? PrintAnswers(shell, *answers) : shell.Fail(answers.status());
}

ExitCode Pin(const PinOptions& options, Shell& shell) {
  wire::PinQuery query;
  query.tenant = shell.options().tenant;
  query.owner = options.owner;
  query.tier = TierNamed(options.tier);
  query.ttl = options.ttl.count() > 0 ? options.ttl : wire::kPinTtlDefault;
  wire::PinResult last;
  const auto answers = AskParts(
      options, shell,
      [&](RpcStub& cache,
          const wire::BlockSelection& blocks) -> absl::StatusOr<std::vector<wire::BlockAnswer>> {
        query.blocks = blocks;
        LARDER_ASSIGN_OR_RETURN(wire::PinResult pinned, cache.Pin(query, shell.Limits()));
        last = pinned;
        return std::move(pinned.blocks);
      });
  if (!answers.ok()) return shell.Fail(answers.status());
  const absl::Time until = absl::FromUnixMillis(static_cast<int64_t>(last.deadline_unix_ms));
  const ExitCode code = PrintAnswers(shell, *answers,
                                     {{"owner", options.owner},
                                      {"deadline_unix_ms", last.deadline_unix_ms},
                                      {"durable", last.durable}},
                                     PendingOf(query.tier));
  shell.Say(absl::StrCat("pinned for ", Printable(options.owner), " until ",
                         absl::FormatTime("%Y-%m-%d %H:%M:%S %Z", until, absl::LocalTimeZone()),
                         query.tier == Tier::kDevice ? ", or until its engine ends"
                         : last.durable              ? ""
                                        : ", or until the daemon ends, as it has no disk"));
  return code;
}

ExitCode UnpinAll(const PinOptions& options, Shell& shell) {
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  wire::UnpinQuery query;
  query.tenant = shell.options().tenant;
  query.owner = options.owner;
  const absl::StatusOr<wire::UnpinResult> result = (*cache)->Unpin(query, shell.Limits());
  if (!result.ok()) return shell.Fail(result.status());
  if (shell.json()) {
    shell.PrintJson(Json{{"owner", options.owner},
                         {"unpinned", result->unpinned},
                         {"sessions_unanswered", result->sessions_unanswered}});
  } else {
    shell.Print(absl::StrCat("unpinned ", FormatCount(result->unpinned), "\n"));
  }
  if (result->sessions_unanswered == 0) return ExitCode::kOk;
  shell.Say(absl::StrCat(FormatCount(result->sessions_unanswered),
                         " sessions did not end the pins on their devices"));
  shell.SayNext("the same command again");
  return ExitCode::kIncomplete;
}

ExitCode Unpin(const PinOptions& options, Shell& shell) {
  if (options.all && options.blocks.named())
    return shell.Fail(
        absl::InvalidArgumentError("name blocks, or give --all for all of the owner, not both"));
  if (options.all) return UnpinAll(options, shell);
  wire::UnpinQuery query;
  query.tenant = shell.options().tenant;
  query.owner = options.owner;
  query.tier = TierNamed(options.tier);
  uint64_t unpinned = 0;
  const auto answers = AskParts(
      options, shell,
      [&](RpcStub& cache,
          const wire::BlockSelection& blocks) -> absl::StatusOr<std::vector<wire::BlockAnswer>> {
        query.blocks = blocks;
        LARDER_ASSIGN_OR_RETURN(wire::UnpinResult result, cache.Unpin(query, shell.Limits()));
        unpinned += result.unpinned;
        return std::move(result.blocks);
      });
  if (!answers.ok()) return shell.Fail(answers.status());
  return PrintAnswers(shell, *answers, {{"owner", options.owner}, {"unpinned", unpinned}},
                      PendingOf(query.tier));
}

void AddOwner(VerbOptions& verb, PinOptions* options) {
  verb.AddText("--owner", &options->owner, "NAME",
               "Owner of the pins; only the same owner ends them.");
}

}  // namespace

void AddPrefetch(CommandTree& tree) {
  tree.Add({.name = "prefetch",
            .summary = "brings blocks into host memory ahead of use",
            .about = "Keeps the blocks there for the time of --ttl. Returns at once: the daemon is "
                     "still bringing in the pending blocks.",
            .examples = {{"prefetch --model my-model --tokens @prompt.ids --ttl 2min",
                          "For a request that waits in a queue."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<PinOptions>();
             options->blocks.AddTo(verb, BlockOptions::Scopes::kNames);
             verb.AddDuration("--ttl", &options->ttl,
                              "How long the blocks are kept; at most 10min. Default: 1min.");
             return [options](Shell& shell) { return Prefetch(*options, shell); };
           });
}

void AddPin(CommandTree& tree) {
  tree.Add({.name = "pin",
            .summary = "keeps blocks in a tier until a deadline",
            .about = "The daemon does not evict pinned blocks from the tier. An owner counts once: "
                     "pinning again sets the new deadline. Blocks that are elsewhere are brought "
                     "into the tier. If the daemon has a disk, pins survive its restart.",
            .examples = {{"pin --model my-model --tokens @system-prompt.ids --ttl 12h",
                          "A prefix that all requests share."},
                         {"pin --owner night-job --tier disk - < keys", "Keys from a file."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<PinOptions>();
             options->blocks.AddTo(verb, BlockOptions::Scopes::kNames);
             AddOwner(verb, options.get());
             verb.AddWord("--tier", &options->tier, {"host", "disk", "device"},
                          "Tier that keeps the blocks; on devices, the engines that have them do.");
             verb.AddDuration("--ttl", &options->ttl,
                              "How long the blocks are kept; at most 720h. Default: 1h.");
             return [options](Shell& shell) { return Pin(*options, shell); };
           });
}

void AddUnpin(CommandTree& tree) {
  tree.Add({.name = "unpin",
            .summary = "ends pins of blocks",
            .about = "Pins of other owners stay. A block that this owner has not pinned is "
                     "reported as missing.",
            .examples = {{"unpin --all", "All blocks that were pinned without --owner."},
                         {"unpin --owner night-job --tier disk - < keys",
                          "Some blocks of another owner."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<PinOptions>();
             options->blocks.AddTo(verb, BlockOptions::Scopes::kNames);
             AddOwner(verb, options.get());
             verb.AddWord("--tier", &options->tier, {"host", "disk", "device"},
                          "Tier in which the blocks are pinned.");
             verb.AddFlag("--all", &options->all, "All pins of this owner, in every tier.");
             return [options](Shell& shell) { return Unpin(*options, shell); };
           });
}

}  // namespace larder::cli
