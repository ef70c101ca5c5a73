// top: shows what the daemon does now.
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/shell/table.h"
#include "client/cli/shell/terminal.h"
#include "client/cli/verbs/node_view.h"
#include "client/cli/verbs/verbs.h"
#include "storage/clock.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

struct TopOptions {
  std::chrono::milliseconds interval{0};
  bool once = false;
};

struct Rate {
  const char* name;
  const char* metric;
  bool bytes;
};
constexpr Rate kRates[] = {
    {"blocks put", "larder_blocks_put_total{result=\"published\"}", false},
    {"blocks got from host", "larder_blocks_got_total{result=\"hit\"}", false},
    {"blocks got from disk", "larder_blocks_got_total{result=\"disk\"}", false},
    {"blocks missing", "larder_blocks_got_total{result=\"missing\"}", false},
    {"lookups", "larder_requests_total{kind=\"lookup\"}", false},
    {"evicted on demand", "larder_blocks_evicted_total{cause=\"demand\"}", false},
    {"evicted ahead", "larder_blocks_evicted_total{cause=\"watermark\"}", false},
    {"spilled to disk", "larder_disk_moved_bytes_total{how=\"spilled\"}", true},
    {"promoted from disk", "larder_disk_moved_bytes_total{how=\"promoted\"}", true},
};

std::string Rates(const wire::NodeStats& before, const wire::NodeStats& now, double seconds) {
  Table table({{"WHAT"}, {"A SECOND", Table::Kind::kNumber}, {"IN ALL", Table::Kind::kNumber}});
  for (const Rate& rate : kRates) {
    const double all = MetricOf(now, rate.metric);
    const double each = seconds > 0 ? (all - MetricOf(before, rate.metric)) / seconds : 0;
    table.Add({rate.name, rate.bytes ? FormatBytes(each) : absl::StrFormat("%.1f", each),
               rate.bytes ? FormatBytes(all) : FormatCount(static_cast<uint64_t>(all))});
  }
  return table.Format(ColumnsOf(STDOUT_FILENO));
}

Json RatesJson(const wire::NodeStats& before, const wire::NodeStats& now, double seconds) {
  Json out = ToJson(now);
  Json& rates = out["per_second"] = Json::object();
  for (const Rate& rate : kRates)
    rates[rate.metric] = (MetricOf(now, rate.metric) - MetricOf(before, rate.metric)) / seconds;
  return out;
}

ExitCode Top(const TopOptions& options, Shell& shell) {
  const std::chrono::milliseconds interval =
      options.interval.count() > 0 ? options.interval : std::chrono::seconds(2);
  const bool once = options.once || shell.json() || !IsTerminal(STDOUT_FILENO);
  const absl::StatusOr<AdminStub*> admin = shell.Admin();
  if (!admin.ok()) return shell.Fail(admin.status());
  absl::StatusOr<wire::NodeStats> before = (*admin)->Stats(shell.Limits());
  auto looked = SteadyNow();
  // Ctrl-C is the usual end of this loop, and no error.
  while (before.ok() && shell.interrupt().Sleep(interval)) {
    absl::StatusOr<wire::NodeStats> now = (*admin)->Stats(shell.Limits());
    if (!now.ok())
      return shell.interrupt().signal() != 0 ? ExitCode::kOk : shell.Fail(now.status());
    const auto time = SteadyNow();
    const double seconds = std::chrono::duration<double>(time - looked).count();
    if (shell.json()) {
      shell.PrintJson(RatesJson(*before, *now, seconds));
    } else {
      shell.Print(absl::StrCat(once ? "" : "\x1b[H\x1b[J",
                               FormatFacts(FactsOf(*now), shell.width()), "\n",
                               Rates(*before, *now, seconds)));
    }
    if (once) return ExitCode::kOk;
    before = std::move(now);
    looked = time;
  }
  return before.ok() || shell.interrupt().signal() != 0 ? ExitCode::kOk
                                                        : shell.Fail(before.status());
}

}  // namespace

void AddTop(CommandTree& tree) {
  tree.Add({.name = "top",
            .summary = "shows what the daemon does, refreshed regularly",
            .about = "Prints what status prints, and below it rates per second. On a terminal it "
                     "refreshes until Ctrl-C, which is no error; elsewhere, and with --once or -o "
                     "json, it prints once, after one interval.",
            .examples = {{"top", "Refreshes every two seconds."},
                         {"top --once --interval 10s", "The rates of ten seconds."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto options = std::make_shared<TopOptions>();
             verb.AddDuration("--interval", &options->interval,
                              "Time between two refreshes. Default: 2s.");
             verb.AddFlag("--once", &options->once, "Print once and exit.");
             return [options](Shell& shell) { return Top(*options, shell); };
           });
}

}  // namespace larder::cli
