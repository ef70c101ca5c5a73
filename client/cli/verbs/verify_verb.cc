// larderctl verify: has the daemon read and check every block of host memory, of disk, or of both.
#include "absl/strings/str_cat.h"
#include "client/cli/shell/progress_bar.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/node_view.h"
#include "client/cli/verbs/verbs.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

struct VerifyOptions {
  std::string tier = "all";
  uint64_t rate = 0;
};

using Results = std::vector<std::pair<Tier, wire::VerifyProgress>>;

absl::StatusOr<std::vector<Tier>> TiersOf(const std::string& word, AdminStub& admin, Shell& shell) {
  if (word == "host") return std::vector{Tier::kHost};
  if (word == "disk") return std::vector{Tier::kDisk};
  LARDER_ASSIGN_OR_RETURN(const wire::NodeStats stats, admin.Stats(shell.Limits()));
  return HasDisk(stats) ? std::vector{Tier::kHost, Tier::kDisk} : std::vector{Tier::kHost};
}

void Print(const Results& results, Shell& shell) {
  if (shell.json()) {
    Json tiers = Json::array();
    for (const auto& [tier, p] : results) {
      tiers.push_back({{"tier", ToString(tier)},
                       {"blocks", p.blocks},
                       {"bytes", p.bytes.value()},
                       {"done", p.blocks_done},
                       {"whole", p.whole},
                       {"damaged", p.damaged},
                       {"missing", p.missing},
                       {"unread", p.unread}});
    }
    return shell.PrintJson(Json{{"tiers", std::move(tiers)}});
  }
  constexpr Table::Kind kNumber = Table::Kind::kNumber;
  Table table({{"TIER"},
               {"BLOCKS", kNumber},
               {"BYTES", kNumber},
               {"WHOLE", kNumber},
               {"DAMAGED", kNumber},
               {"MISSING", kNumber},
               {"UNREAD", kNumber}});
  for (const auto& [tier, p] : results) {
    table.Add({ToString(tier), FormatCount(p.blocks_done),
               FormatBytes(static_cast<double>(p.bytes_done.value())), FormatCount(p.whole),
               FormatCount(p.damaged), FormatCount(p.missing), FormatCount(p.unread)});
  }
  shell.Print(table.Format(shell.width()));
}

ExitCode Verify(const VerifyOptions& options, Shell& shell) {
  const absl::StatusOr<AdminStub*> admin = shell.Admin();
  if (!admin.ok()) return shell.Fail(admin.status());
  const absl::StatusOr<std::vector<Tier>> tiers = TiersOf(options.tier, **admin, shell);
  if (!tiers.ok()) return shell.Fail(tiers.status());
  Results results;
  absl::Status status;
  for (const Tier tier : *tiers) {
    wire::VerifyProgress& latest = results.emplace_back(tier, wire::VerifyProgress{}).second;
    ProgressBar bar(absl::StrCat("verify ", ToString(tier)));
    status = (*admin)->Verify({.tier = tier, .bytes_per_s = options.rate},
                              shell.Limits(std::chrono::hours(24)),
                              [&](const wire::VerifyProgress& progress) {
                                latest = progress;
                                bar.Show({latest.blocks_done, latest.blocks,
                                          latest.bytes_done.value(), latest.bytes.value()});
                                return true;
                              });
    if (!status.ok()) break;
  }
  uint64_t damaged = 0, unread = 0, done = 0;
  for (const auto& [tier, progress] : results) {
    damaged += progress.damaged;
    unread += progress.unread;
    done += progress.blocks_done;
  }
  if (status.ok() || done > 0) Print(results, shell);
  if (!status.ok()) return shell.Fail(status);
  if (damaged + unread == 0) return ExitCode::kOk;
  shell.Say(absl::StrCat(FormatCount(damaged), " blocks were damaged and have been dropped, ",
                         FormatCount(unread), " could not be read"));
  shell.SayNext("larderctl status, and the log of larderd");
  return ExitCode::kIncomplete;
}

}  // namespace

void AddVerify(CommandTree& tree) {
  tree.Add({.name = "verify",
            .summary = "reads and checks every stored block",
            .about = "Checks the blocks against their hashes, one at a time. The daemon drops and "
                     "counts a damaged block, and the next engine that wants it computes it. Exits "
                     "with 1 if a block was damaged or could not be read.",
            .examples = {{"verify", "Host memory, and the disk if there is one."},
                         {"verify --tier disk --rate 64MiB",
                          "Leaves the rest of the disk's rate to engines."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<VerifyOptions>();
             verb.AddWord("--tier", &options->tier, {"all", "host", "disk"}, "Tier to verify.");
             verb.AddBytes("--rate", &options->rate,
                           "Bytes per second, at most. Default: as fast as one reader can.");
             return [options](Shell& shell) { return Verify(*options, shell); };
           });
}

}  // namespace larder::cli
