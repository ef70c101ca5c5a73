// status, config, drain: about the daemon as a whole.
#include "absl/strings/str_cat.h"
#include "client/cli/shell/table.h"
#include "client/cli/verbs/node_view.h"
#include "client/cli/verbs/verbs.h"
#include "storage/clock.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

ExitCode Status(Shell& shell) {
  const absl::StatusOr<AdminStub*> admin = shell.Admin();
  if (!admin.ok()) return shell.Fail(admin.status());
  const absl::StatusOr<wire::NodeStats> stats = (*admin)->Stats(shell.Limits());
  if (!stats.ok()) return shell.Fail(stats.status());
  if (shell.json()) {
    shell.PrintJson(ToJson(*stats));
  } else {
    shell.Print(FormatFacts(FactsOf(*stats), shell.width()));
  }
  return ExitCode::kOk;
}

ExitCode Config(Shell& shell) {
  const absl::StatusOr<AdminStub*> admin = shell.Admin();
  if (!admin.ok()) return shell.Fail(admin.status());
  const absl::StatusOr<std::string> toml = (*admin)->Config(shell.Limits());
  if (!toml.ok()) return shell.Fail(toml.status());
  if (shell.json()) {
    shell.PrintJson(Json{{"toml", *toml}});
    return ExitCode::kOk;
  }
  shell.PrintLines(*toml);
  return ExitCode::kOk;
}

struct DrainOptions {
  std::chrono::milliseconds limit{0};
  bool wait = false, yes = false;
};

// Waits until the daemon no longer listens at its socket file.  Returns DeadlineExceeded if the
// daemon still listens 10 s after `limit` has passed, Cancelled after a signal.
absl::Status AwaitEnd(Shell& shell, std::chrono::milliseconds limit) {
  const auto until = SteadyNow() + limit + std::chrono::seconds(10);
  while (shell.ProbeAdmin().ok()) {
    if (SteadyNow() >= until)
      return absl::DeadlineExceededError("larderd still runs 10 s after its limit has passed");
    if (!shell.interrupt().Sleep(std::chrono::milliseconds(100)))
      return absl::CancelledError("interrupted");
  }
  return absl::OkStatus();
}

ExitCode Drain(const DrainOptions& options, Shell& shell) {
  const absl::StatusOr<AdminStub*> admin = shell.Admin();
  if (!admin.ok()) return shell.Fail(admin.status());
  const std::chrono::milliseconds limit =
      options.limit.count() > 0 ? options.limit : std::chrono::seconds(30);
  absl::Status status = shell.Confirm(
      absl::StrCat("End the daemon at ", Printable(shell.SocketFolder()), "?"), options.yes);
  if (!status.ok()) return shell.Fail(status);
  const absl::StatusOr<uint32_t> told = (*admin)->Drain(limit, shell.Limits());
  if (!told.ok()) return shell.Fail(told.status());
  if (options.wait) status = AwaitEnd(shell, limit);
  if (!status.ok()) return shell.Fail(status, "larderctl status");
  if (shell.json()) {
    shell.PrintJson(Json{{"sessions", *told}, {"ended", options.wait}});
  } else {
    shell.Print(FormatFacts(
        {{"sessions told", FormatCount(*told)}, {"daemon", options.wait ? "ended" : "drains"}},
        shell.width()));
  }
  return ExitCode::kOk;
}

}  // namespace

void AddStatus(CommandTree& tree) {
  tree.Add(
      {.name = "status",
       .summary = "shows what the daemon holds and does",
       .about = "Prints the state of this moment: pool, disk, blocks, what each user and process "
                "holds, hits and damage. -o json has every counter and gauge under its name in "
                "docs/metrics.md.",
       .examples = {{"status", "One page."}, {"status -o json | jq .gauges", "Every gauge."}}},
      [](VerbOptions&) -> RunVerb { return Status; });
}

void AddConfig(CommandTree& tree) {
  tree.Add({.name = "config",
            .summary = "prints the configuration in effect",
            .about = "Prints it as larderd --print-config does: a file for larderd --config, with "
                     "the origin of each value.",
            .examples = {{"config", "The configuration of the running daemon."},
                         {"config > larder.toml", "To start another daemon like it."}}},
           [](VerbOptions&) -> RunVerb { return Config; });
}

void AddDrain(CommandTree& tree) {
  tree.Add(
      {.name = "drain",
       .summary = "ends the daemon, once the work under way has ended",
       .about = "Ends the daemon as SIGTERM does: it refuses new work, tells its sessions, and "
                "exits when they have gone and all blocks that wait for the disk are written, or "
                "when the limit has passed.",
       .examples = {{"drain --yes --wait", "Returns when the daemon has ended."},
                    {"drain --yes --limit 5min", "Gives engines more time."}}},
      [](VerbOptions& verb) -> RunVerb {
        const auto options = std::make_shared<DrainOptions>();
        verb.AddDuration("--limit", &options->limit,
                         "Time after which the daemon exits anyway. Default: 30s.");
        verb.AddFlag("--wait", &options->wait, "Return when the daemon has ended.");
        verb.AddFlag("-y,--yes", &options->yes, "Do not ask for confirmation.");
        return [options](Shell& shell) { return Drain(*options, shell); };
      });
}

}  // namespace larder::cli
