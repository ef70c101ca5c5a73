// How many tokens does Larder's eviction keep that plain LRU would have lost, at equal bytes?
//
// The index alone is measured, without bytes; a cache has a share of all blocks that the trace
// touches.  LRU evicts the block whose last use is longest ago, block by block.  A request uses its
// chain from the head to the tail or, as in engines that give up tails first, from the tail to the
// head: the floor is the better of the two.  Beside each figure stands what an eviction that knows
// the future would reach: where that is little more than LRU, there is nothing to win.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/eviction/generated_traces.h"
#include "bench/harness/harness.h"
#include "client/llama_cpp/svg_plot.h"
#include "storage/replay/index_cache.h"
#include "storage/replay/known_policies.h"
#include "storage/replay/replay.h"
#include "storage/replay/trace_files.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder::bench {
namespace {

using replay::ReplayResult;
using replay::RequestTrace;
using replay::UseOrder;

constexpr char kUsage[] =
    R"(usage: bench_eviction [--quick] [--json FILE] [--list] [FIGURE...]
       bench_eviction --trace FILE [FILE...] [--cache PERCENT,..] [--plots DIR]
                      [--session-every SECONDS] [--json FILE]
Replays requests against Larder's eviction, others, and one that knows the future.  Without --trace
the requests are generated.
  --trace FILE...  traces as Mooncake, Qwen-Bailian and kv-cache-tester publish them, or lines of a
                   time in seconds and block ids (storage/replay/trace_files.h)
  --cache LIST     sizes of the cache in percent of the blocks that the trace touches
                   (default: 1,3,10,20,30)
  --plots DIR      draws the hits over the size of the cache: DIR/TRACE.svg
  --session-every SECONDS
                   between the beginnings of two sessions, of traces in which each session has its
                   own clock (default: 60)
  --quick          shorter generated traces
  --json FILE      appends a line per figure
  --list           prints the names of all figures of the generated traces
)";

constexpr Tier kTiers[] = {Tier::kDisk, Tier::kHost};
std::string NameOf(Tier tier) { return tier == Tier::kDisk ? "disk" : "host"; }

size_t CapacityOf(size_t footprint, double percent) {
  return std::max<size_t>(1, static_cast<size_t>(static_cast<double>(footprint) * percent / 100));
}

// ---- generated traces

constexpr int kSeeds = 5;
constexpr int kPercents[] = {10, 20, 30};  // of the footprint

double HitTokens(const RequestTrace& trace, std::unique_ptr<replay::ReplayCache> cache) {
  return static_cast<double>(Replay(trace, *cache).hits * kStepTokens);
}

// One cache size of one population, all seeds.
struct Compared {
  std::vector<double> ours, head_first, tail_first, lru;  // tokens; lru is the better of the two
  std::vector<double> ratios, bounds;                     // to lru: ours; with the future known
};
Compared Compare(const Population& population, int percent, Tier tier, size_t requests) {
  Compared c;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const RequestTrace trace = GenerateTrace(static_cast<uint64_t>(seed), population, requests);
    const size_t capacity = CapacityOf(Footprint(trace), percent);
    c.ours.push_back(HitTokens(trace, replay::MakeIndexCache(capacity, tier)));
    c.head_first.push_back(HitTokens(trace, replay::MakeLru(capacity, UseOrder::kHeadFirst)));
    c.tail_first.push_back(HitTokens(trace, replay::MakeLru(capacity, UseOrder::kTailFirst)));
    c.lru.push_back(std::max(c.head_first.back(), c.tail_first.back()));
    c.ratios.push_back(c.ours.back() / c.lru.back());
    c.bounds.push_back(HitTokens(trace, replay::MakeClairvoyant(capacity, trace)) / c.lru.back());
  }
  return c;
}

std::string NameOf(const std::string& figure, const Population& population, int percent) {
  return absl::StrCat(figure, "_", population.name, "_", percent);
}

void Measure(Harness& harness, const std::string& figure, Tier tier) {
  const std::string mean = figure + "_mean", least = figure + "_least";
  const bool wants_all = harness.Wants(mean) || harness.Wants(least);
  std::vector<double> all;
  for (const Population& population : kPopulations) {
    for (const int percent : kPercents) {
      const std::string name = NameOf(figure, population, percent);
      if (!wants_all && !harness.Wants(name)) continue;
      const Compared c = Compare(population, percent, tier, harness.quick() ? 4'000 : 12'000);
      all.insert(all.end(), c.ratios.begin(), c.ratios.end());
      harness.Report({name, Median(c.ours), "tokens", Median(c.lru), Median(c.ratios), kSeeds});
      harness.Note(
          absl::StrCat("cache of ", percent, " % of the footprint; the least ratio of ", kSeeds,
                       " seeds ", *std::min_element(c.ratios.begin(), c.ratios.end()),
                       "; LRU head first ", Median(c.head_first), ", tail first ",
                       Median(c.tail_first), "; with the future known ", Median(c.bounds)));
    }
  }
  if (!wants_all) return;
  const double sum = std::accumulate(all.begin(), all.end(), 0.0);
  const int rounds = static_cast<int>(all.size());
  harness.Report(
      {mean, sum / static_cast<double>(all.size()), "of LRU", std::nullopt, std::nullopt, rounds});
  harness.Report({least, *std::min_element(all.begin(), all.end()), "of LRU", std::nullopt,
                  std::nullopt, rounds});
}

std::vector<std::string> GeneratedFigures() {
  std::vector<std::string> all;
  for (const Tier tier : kTiers) {
    const std::string figure = "hit_tokens_" + NameOf(tier);
    for (const Population& population : kPopulations) {
      for (const int percent : kPercents) all.push_back(NameOf(figure, population, percent));
    }
    all.push_back(figure + "_mean");
    all.push_back(figure + "_least");
  }
  return all;
}

// ---- traces in files

struct Arguments {
  std::vector<char*> rest = {};  // for the harness
  std::vector<std::string> traces = {};
  std::vector<double> percents = {1, 3, 10, 20, 30};
  std::string plots = {};
  replay::ReadOptions read = {};
  bool help = false, wrong = false;
};

bool ReadPercents(std::string_view list, std::vector<double>* percents) {
  percents->clear();
  for (const absl::string_view one : absl::StrSplit(AbslView(list), ',')) {
    double percent = 0;
    if (!absl::SimpleAtod(one, &percent) || !(percent > 0 && percent <= 100)) return false;
    percents->push_back(percent);
  }
  std::sort(percents->begin(), percents->end());
  return true;
}

// What is compared, in the order of the table.
struct Policy {
  const char* name;
  std::function<ReplayResult(const RequestTrace&, size_t capacity)> run;
};

ReplayResult Better(const ReplayResult& a, const ReplayResult& b) {
  return a.hits < b.hits ? b : a;
}

std::vector<Policy> Policies() {
  const auto lru = [](UseOrder order) {
    return [order](const RequestTrace& trace, size_t capacity) {
      return Replay(trace, *replay::MakeLru(capacity, order));
    };
  };
  const auto ours = [](Tier tier) {
    return [tier](const RequestTrace& trace, size_t capacity) {
      return Replay(trace, *replay::MakeIndexCache(capacity, tier));
    };
  };
  return {{"LRU, head first", lru(UseOrder::kHeadFirst)},
          {"LRU, tail first", lru(UseOrder::kTailFirst)},
          {"ARC",
           [](const RequestTrace& trace, size_t capacity) {
             return Better(Replay(trace, *replay::MakeArc(capacity, UseOrder::kHeadFirst)),
                           Replay(trace, *replay::MakeArc(capacity, UseOrder::kTailFirst)));
           }},
          {"S3-FIFO",
           [](const RequestTrace& trace, size_t capacity) {
             return Better(Replay(trace, *replay::MakeS3Fifo(capacity, UseOrder::kHeadFirst)),
                           Replay(trace, *replay::MakeS3Fifo(capacity, UseOrder::kTailFirst)));
           }},
          {"Larder, disk", ours(Tier::kDisk)},
          {"Larder, host", ours(Tier::kHost)},
          {"future known", [](const RequestTrace& trace, size_t capacity) {
             return Replay(trace, *replay::MakeClairvoyant(capacity, trace));
           }}};
}
// Places in Policies().
constexpr size_t kLruHead = 0, kLruTail = 1, kOursDisk = 4, kOursHost = 5;

// The name of a trace in figures: its file's name without folders and extension.
std::string StemOf(const std::string& path) { return std::filesystem::path(path).stem().string(); }
bool StemsDiffer(const std::vector<std::string>& paths) {
  std::set<std::string> stems;
  return std::all_of(paths.begin(), paths.end(), [&](const std::string& path) {
    const std::string stem = StemOf(path);
    return !stem.empty() && stem.find('"') == std::string::npos && stems.insert(stem).second;
  });
}

Arguments Read(int argc, char** argv) {
  Arguments arguments;
  bool traces = false;     // words are files of --trace
  bool of_traces = false;  // an option was given that is for traces alone
  for (int i = 0; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const bool last = i + 1 == argc;
    of_traces |= arg == "--cache" || arg == "--plots" || arg == "--session-every";
    if (arg == "--help" || arg == "-h") {
      arguments.help = true;
    } else if (last && (arg == "--trace" || arg == "--cache" || arg == "--plots" ||
                        arg == "--session-every")) {
      arguments.wrong = true;
    } else if (arg == "--trace") {
      traces = true;
    } else if (arg == "--cache") {
      arguments.wrong |= !ReadPercents(argv[++i], &arguments.percents);
    } else if (arg == "--plots") {
      arguments.plots = argv[++i];
    } else if (arg == "--session-every") {
      double& every_s = arguments.read.session_every_s;
      arguments.wrong |= !absl::SimpleAtod(argv[++i], &every_s) || !(every_s >= 0 && every_s < 1e9);
    } else if (arg == "--json" && !last) {
      arguments.rest.push_back(argv[i]);
      arguments.rest.push_back(argv[++i]);
    } else if (traces && !arg.starts_with("-")) {
      arguments.traces.emplace_back(arg);
    } else {
      arguments.rest.push_back(argv[i]);
    }
  }
  // An option of traces alone says that --trace was forgotten.
  arguments.wrong |= (traces || of_traces) && arguments.traces.empty();
  if (!arguments.wrong && !StemsDiffer(arguments.traces)) {
    std::fputs("bench_eviction: the names of the traces name the figures: they must differ\n",
               stderr);
    arguments.wrong = true;
  }
  return arguments;
}

std::string TraceFigure(const std::string& path, Tier tier, double percent) {
  return absl::StrCat("hit_tokens_trace_", NameOf(tier), "_", StemOf(path), "_", percent);
}

void PrintRow(std::string_view name, const ReplayResult& result, double lru) {
  std::printf("  %-18s %8.4f %9.4f %8.3f\n", std::string(name).c_str(), result.hit_share(),
              result.saved_share(), lru > 0 ? result.hit_share() / lru : 0.0);
}

absl::Status CompareOn(const std::string& path, const Arguments& arguments, Harness& harness) {
  LARDER_ASSIGN_OR_RETURN(const RequestTrace trace, replay::ReadTrace(path, arguments.read));
  const size_t footprint = Footprint(trace);
  std::printf("%s: %zu requests, %zu blocks\n", path.c_str(), trace.requests.size(), footprint);
  const std::vector<Policy> policies = Policies();
  Plot plot{.title = StemOf(path),
            .x_label = "cache, % of all blocks",
            .y_label = "hits / blocks of requests"};
  for (const Policy& one : policies) plot.series.push_back({.name = one.name});
  for (const double percent : arguments.percents) {
    const size_t capacity = CapacityOf(footprint, percent);
    std::vector<ReplayResult> results;
    for (const Policy& one : policies) results.push_back(one.run(trace, capacity));
    const double lru = std::max(results[kLruHead].hit_share(), results[kLruTail].hit_share());
    std::printf("%g %%, %zu blocks %13s %9s %8s\n", percent, capacity, "hits", "saved", "of LRU");
    for (size_t i = 0; i < policies.size(); ++i) {
      PrintRow(policies[i].name, results[i], lru);
      plot.series[i].x.push_back(percent);
      plot.series[i].y.push_back(results[i].hit_share());
    }
    for (const auto& [tier, ours] : {std::pair(Tier::kDisk, kOursDisk), {Tier::kHost, kOursHost}}) {
      const double share = results[ours].hit_share();
      harness.Report({TraceFigure(path, tier, percent), share, "of blocks", lru,
                      lru > 0 ? share / lru : 0, 1});
    }
  }
  if (arguments.plots.empty()) return absl::OkStatus();
  return WritePicture(plot, absl::StrCat(arguments.plots, "/", StemOf(path), ".svg"));
}

int Main(int argc, char** argv) {
  Arguments arguments = Read(argc, argv);
  if (arguments.help || arguments.wrong) {
    std::fputs(kUsage, arguments.wrong ? stderr : stdout);
    return arguments.wrong ? 2 : 0;
  }
  std::vector<std::string> figures = GeneratedFigures();
  if (!arguments.traces.empty()) {
    figures.clear();
    for (const std::string& path : arguments.traces) {
      for (const double percent : arguments.percents) {
        for (const Tier tier : kTiers) figures.push_back(TraceFigure(path, tier, percent));
      }
    }
  }
  Harness harness(static_cast<int>(arguments.rest.size()), arguments.rest.data(), figures);
  if (harness.done()) return *harness.done();
  for (const std::string& path : arguments.traces) {
    if (const absl::Status status = CompareOn(path, arguments, harness); !status.ok())
      return harness.Fail(status);
  }
  if (!arguments.traces.empty()) return 0;
  for (const Tier tier : kTiers) Measure(harness, "hit_tokens_" + NameOf(tier), tier);
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) { return larder::bench::Main(argc, argv); }
