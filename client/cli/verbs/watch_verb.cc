// larderctl watch: prints which blocks come to the tiers and leave them.
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/block_options.h"
#include "client/cli/verbs/verbs.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

struct WatchOptions {
  std::string tier = "all", boot_id;
  uint64_t after = 0;
  bool snapshot = false, once = false, tokens = false;
};

const char* KindOf(const wire::BlockEvent& event) {
  return event.cleared ? "cleared" : event.stored ? "stored" : "removed";
}

// Returns the writer as " uid N", or "" if its uid is not known: only stored events have one, and
// only with --with-tokens.
std::string WriterText(const wire::BlockEvent& event) {
  if (!event.chain || event.chain->writer.uid == BlockWriter::kUnknownUid) return "";
  return absl::StrCat(" uid ", event.chain->writer.uid);
}

// The key is the first word of a row, so that every verb that reads keys can read this output.
void PrintRows(const wire::WatchReply& reply, Shell& shell) {
  std::string rows;
  for (const wire::BlockEvent& event : reply.events) {
    if (event.cleared) {  // such an event has no keys
      absl::StrAppendFormat(&rows, "# cleared %s %d %s\n", ToString(event.tier), event.sequence,
                            Printable(event.engine_id));
    }
    for (const Digest& digest : event.digests) {
      const std::string row = absl::StrFormat(
          "%s:%s %-7s %-4s %d%s%s", event.variant.Hex(), digest.Hex(), KindOf(event),
          ToString(event.tier), event.sequence, event.engine_id.empty() ? "" : " ",
          absl::StrCat(Printable(event.engine_id), WriterText(event)));
      absl::StrAppend(&rows, Cut(row, shell.width()), "\n");
    }
  }
  shell.Print(rows);
}

void PrintJson(const wire::WatchReply& reply, Shell& shell) {
  for (const wire::BlockEvent& event : reply.events) {
    Json out = {
        {"event", KindOf(event)}, {"tier", ToString(event.tier)}, {"sequence", event.sequence}};
    if (!event.engine_id.empty()) out["engine"] = event.engine_id;
    if (!event.cleared) out["variant"] = event.variant.Hex();
    Json& digests = out["digests"] = Json::array();
    for (const Digest& digest : event.digests) digests.push_back(digest.Hex());
    if (event.chain) {
      out["parent"] = event.chain->parent.Hex();
      if (event.chain->content != Digest()) out["content"] = event.chain->content.Hex();
      out["block_tokens"] = event.chain->block_tokens;
      out["tokens"] = event.chain->tokens;
      const BlockWriter& writer = event.chain->writer;
      if (writer.uid != BlockWriter::kUnknownUid) out["writer_uid"] = writer.uid;
      if (writer.engine != 0) out["writer_engine"] = writer.engine;
    }
    shell.PrintJson(out, /*one_line=*/true);
  }
}

// Returns a command that watches the same tiers, with `from` as the options that say where it
// starts.  It lacks the options that every verb has.
std::string Again(const WatchOptions& options, absl::string_view from) {
  return absl::StrCat("larderctl watch ", from,
                      options.tier == "all" ? "" : absl::StrCat(" --tier ", options.tier),
                      options.tokens ? " --with-tokens" : "");
}

ExitCode Watch(const WatchOptions& options, Shell& shell) {
  const absl::StatusOr<RpcStub*> cache = shell.Cache();
  if (!cache.ok()) return shell.Fail(cache.status());
  const wire::WatchQuery query{.tenant = shell.options().tenant,
                               .snapshot = options.snapshot || options.once,
                               .boot_id = options.boot_id,
                               .after = options.after,
                               .tiers = TiersNamed(options.tier),
                               .with_tokens = options.tokens};
  shell.interrupt().EndWithReaderOf(STDOUT_FILENO);
  std::string boot_id = options.boot_id;
  uint64_t after = options.after;
  const absl::Status status = (*cache)->Watch(
      query, shell.Limits(CallLimits::kNoDeadline), [&](const wire::WatchReply& reply) {
        if (!reply.boot_id.empty()) boot_id = reply.boot_id;
        if (reply.sequence != 0) after = reply.sequence;
        shell.json() ? PrintJson(reply, shell) : PrintRows(reply, shell);
        return !(options.once && reply.snapshot_end);
      });
  if (status.ok()) return ExitCode::kOk;
  const std::string resume =
      Again(options, absl::StrCat("--boot-id ", Printable(boot_id), " --after ", after));
  if (shell.interrupt().signal() != 0) {
    if (after != 0) shell.Say(absl::StrCat("to continue without a gap: ", resume));
    return ExitCode::kOk;
  }
  const bool gap = absl::IsOutOfRange(status);
  return shell.Fail(status, gap ? Again(options, "--snapshot") : after != 0 ? resume : "");
}

}  // namespace

void AddWatch(CommandTree& tree) {
  tree.Add(
      {.name = "watch",
       .summary = "prints which blocks come to the tiers and leave them",
       .about = "Prints one line per block: key, event, tier, sequence; the sequence is 0 in a "
                "snapshot. Runs until Ctrl-C, which is no error, and then prints how to continue "
                "without a gap. A watcher that reads too slowly is cut off.",
       .examples = {{"watch --once", "Keys of all stored blocks."},
                    {"watch --snapshot --with-tokens -o json",
                     "For a router: one line of JSON per event."}}},
      [](VerbOptions& verb) -> RunVerb {
        const auto options = std::make_shared<WatchOptions>();
        verb.AddFlag("--snapshot", &options->snapshot, "Print all stored blocks first.");
        verb.AddFlag("--once", &options->once, "Print all stored blocks, and exit.");
        verb.AddWord("--tier", &options->tier, {"all", "host", "disk", "device"},
                     "Tiers to watch; all is host and disk.");
        verb.AddFlag("--with-tokens", &options->tokens,
                     "Print the uid of the writer with stored events; in JSON also the number of "
                     "its engine, the parent, the content and the token ids.");
        verb.AddText("--boot-id", &options->boot_id, "ID",
                     "Continue an earlier watch: the boot id of the daemon that it watched.");
        verb.AddNumber("--after", &options->after, "NUMBER",
                       "Continue an earlier watch: the last sequence that it printed.");
        return [options](Shell& shell) { return Watch(*options, shell); };
      });
}

}  // namespace larder::cli
