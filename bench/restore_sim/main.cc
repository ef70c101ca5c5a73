// Runs the scheduler in a simulator: the rows of bench/restore_sim/README.md, with each figure
// beside its bar.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "bench/restore_sim/row.h"

namespace larder::bench {
namespace {

constexpr char kUsage[] =
    R"(usage: bench_restore_sim [--row N]... [--quick] [--json FILE] [--plots DIR] [--seed-base N]
                         [FIGURE...]
Restores prefixes in a simulator, with the scheduler of client/restore, and prints each figure
beside its bar.
  --row N      only this row (1, 2, 3, 4, 5, 5b, 6, 6b, 7, 11, 12, 13); may be repeated;
               bench/restore_sim/README.md describes the rows
  --quick      runs a tenth of the regimes
  --json FILE  appends a line per figure
  --plots DIR  writes pictures (SVG) and their numbers (JSON) there
  --seed-base N  the first of the held-out seeds (rows 3, 4, 5, 5b, 12, 13)
  --list       prints the names of all figures
)";

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  for (const auto& part :
       {PaperRows(), RegimeRows(), BatchRows(), ParallelRows(), DecisionRows(), AdaptiveRows()}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

struct Arguments {
  std::vector<char*> rest = {};  // for the harness
  std::string plots = {};
  uint64_t seed_base = Reporter::kSeedBase;
  bool help = false, wrong = false;
};

Arguments Read(int argc, char** argv, std::vector<Row>& rows) {
  Arguments arguments;
  for (int i = 0; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--help" || arg == "-h") {
      arguments.help = true;
    } else if (arg == "--plots" && i + 1 < argc) {
      arguments.plots = argv[++i];
    } else if (arg == "--seed-base" && i + 1 < argc) {
      arguments.wrong |= !absl::SimpleAtoi(argv[++i], &arguments.seed_base);
    } else if (arg == "--row" && i + 1 < argc) {
      const std::string_view number = argv[++i];
      const size_t before = arguments.rest.size();
      for (Row& row : rows) {
        if (row.number != number) continue;
        for (std::string& figure : row.figures) arguments.rest.push_back(figure.data());
      }
      arguments.wrong |= arguments.rest.size() == before;
    } else {
      arguments.rest.push_back(argv[i]);
    }
  }
  return arguments;
}

int Main(int argc, char** argv) {
  std::vector<Row> rows = AllRows();
  std::vector<std::string> figures;
  for (const Row& row : rows) figures.insert(figures.end(), row.figures.begin(), row.figures.end());
  Arguments arguments = Read(argc, argv, rows);
  if (arguments.help || arguments.wrong) {
    std::fputs(kUsage, arguments.wrong ? stderr : stdout);
    return arguments.wrong ? 2 : 0;
  }
  Harness harness(static_cast<int>(arguments.rest.size()), arguments.rest.data(), figures);
  if (harness.done()) return *harness.done();
  Reporter report(harness, arguments.plots, arguments.seed_base);
  for (const Row& row : rows) {
    if (!report.Wants(row.figures)) continue;
    report.Note("row " + row.number);
    row.run(report);
  }
  if (report.missed() > 0) report.Note(std::to_string(report.missed()) + " bars missed");
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) { return larder::bench::Main(argc, argv); }
