#include "bench/harness/harness.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

constexpr int kTurnCalls = 25;        // of one side of a duel, before the other side's turn
constexpr int kMemoryRounds = 5;      // of the memory's speed, for a figure without rounds
constexpr double kMemoryFresh_s = 2;  // older measurements belong to other figures

std::string JsonNumber(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return "null";
  return absl::StrFormat("%.6g", *value);
}

// The speed is quoted, as "17.3 GB/s" contains a space.
std::string JsonLine(const Figure& f, const std::string& memory) {
  return absl::StrFormat(
      R"({"figure":"%s","value":%s,"unit":"%s","floor":%s,"ratio":%s,"rounds":%d,)"
      R"("memory_gb_s":%s})",
      f.name, JsonNumber(f.value), f.unit, JsonNumber(f.floor), JsonNumber(f.ratio), f.rounds,
      memory);
}

// Calls one side of a duel kTurnCalls times.
absl::Status TakeTurn(const Contestant& side, std::vector<double>* seconds) {
  for (int i = 0; i < kTurnCalls; ++i) {
    LARDER_ASSIGN_OR_RETURN(const double one, side());
    seconds->push_back(one);
  }
  return absl::OkStatus();
}

}  // namespace

Harness::Harness(int argc, char** argv, std::vector<std::string> figures)
    : figures_(std::move(figures)) {
  ReadOptions({argv + std::min(argc, 1), argv + argc});
  if (done_) return;
  const auto wanted = [this](const std::string& figure) { return Wants(figure); };
  if (std::none_of(figures_.begin(), figures_.end(), wanted)) done_ = 0;
}

void Harness::ReadOptions(std::span<char*> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string_view arg = args[i];
    if (arg == "--quick") {
      quick_ = true;
    } else if (arg == "--json" && i + 1 < args.size()) {
      json_ = args[++i];
    } else if (arg == "--list") {
      for (const std::string& figure : figures_) std::printf("%s\n", figure.c_str());
      done_ = 0;
    } else if (arg.starts_with("-")) {
      std::fprintf(stderr, "usage: PROGRAM [--quick] [--json FILE] [--list] [FIGURE...]\n");
      done_ = 2;
    } else {
      names_.emplace_back(arg);
    }
  }
}

bool Harness::Wants(std::string_view figure) const {
  if (names_.empty()) return true;
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& name) {
    return figure.starts_with(name) || name == std::string(figure) + "_p99";
  });
}

void Harness::Report(const Figure& figure) {
  if (SecondsNow() - memory_.measured_at() > kMemoryFresh_s) {
    memory_.Forget();
    for (int round = 0; round < kMemoryRounds; ++round) memory_.Measure();
  }
  const auto memory = memory_.Get();
  std::printf("%-36s %12s %12s %8s  %-6d  %s\n", figure.name.c_str(),
              Pretty(figure.value, figure.unit).c_str(),
              figure.floor ? Pretty(*figure.floor, figure.unit).c_str() : "-",
              figure.ratio ? absl::StrFormat("%.3f", *figure.ratio).c_str() : "-", figure.rounds,
              ToText(memory).c_str());
  std::fflush(stdout);
  if (json_.empty()) return;
  std::ofstream file(json_, std::ios::app);
  file << JsonLine(figure, ToJson(memory)) << '\n';
  if (!file.flush()) std::fprintf(stderr, "bench: cannot write %s\n", json_.c_str());
}

void Harness::Note(std::string_view text) const {
  std::printf("  %s\n", std::string(text).c_str());
  std::fflush(stdout);
}

int Harness::Fail(const absl::Status& status) const {
  std::fprintf(stderr, "bench: %s\n", status.ToString().c_str());
  return 1;
}

std::vector<std::string> WithP99(const std::vector<std::string>& figures) {
  std::vector<std::string> all;
  for (const std::string& figure : figures) {
    all.push_back(figure);
    all.push_back(absl::StrCat(figure, "_p99"));
  }
  return all;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at =
      std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

double Median(std::vector<double> values) {
  const double upper = Quantile(values, 0.5);
  if (values.size() % 2 == 1 || values.empty()) return upper;
  std::sort(values.begin(), values.end());
  return (values[values.size() / 2 - 1] + upper) / 2;
}

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Pretty(double value, std::string_view unit) {
  if (unit == "B/s") return absl::StrFormat("%.2f GB/s", value / 1e9);
  if (unit == "s") return absl::StrFormat("%.1f us", value * 1e6);
  if (unit == "B") return absl::StrFormat("%.1f B", value);
  return absl::StrFormat("%.3f", value);
}

absl::StatusOr<std::vector<std::vector<double>>> Interleave(
    Harness& harness, int rounds, std::span<const Contestant> contestants) {
  std::vector<std::vector<double>> results(contestants.size());
  harness.memory().Forget();
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    harness.memory().Measure();
    for (size_t c = 0; c < contestants.size(); ++c) {
      LARDER_ASSIGN_OR_RETURN(double result, contestants[c]());
      if (round >= 0) results[c].push_back(result);
    }
  }
  harness.memory().Measure();
  return results;
}

double MedianRatio(std::span<const double> ours, std::span<const double> floor) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.size(), floor.size()); ++i)
    ratios.push_back(ours[i] / floor[i]);
  return Median(std::move(ratios));
}

size_t Fastest(std::span<const std::vector<double>> rates) {
  const auto best = std::max_element(rates.begin(), rates.end(), [](const auto& a, const auto& b) {
    return Median(a) < Median(b);
  });
  return static_cast<size_t>(best - rates.begin());
}

absl::StatusOr<Duel> RunDuel(Harness& harness, int calls, const Contestant& ours,
                             const Contestant& floor) {
  Duel duel;
  harness.memory().Forget();
  for (int round = -1; round < harness.rounds(); ++round) {
    harness.memory().Measure();
    // One turn of each side is not counted: measuring the memory has emptied the caches, and the
    // processes on the other side have fallen asleep meanwhile.
    std::vector<double> seconds[2], unmeasured;
    for (const Contestant* side : {&ours, &floor}) {
      LARDER_RETURN_IF_ERROR(TakeTurn(*side, &unmeasured));
    }
    while (seconds[0].size() < static_cast<size_t>(calls)) {
      LARDER_RETURN_IF_ERROR(TakeTurn(ours, &seconds[0]));
      LARDER_RETURN_IF_ERROR(TakeTurn(floor, &seconds[1]));
    }
    if (round < 0) continue;
    for (int side = 0; side < 2; ++side) {
      Latencies& latencies = side == 0 ? duel.ours : duel.floor;
      latencies.p50.push_back(Quantile(seconds[side], 0.50));
      latencies.p99.push_back(Quantile(seconds[side], 0.99));
    }
  }
  harness.memory().Measure();
  return duel;
}

void ReportDuel(Harness& harness, const std::string& name, const Duel& duel) {
  const auto report = [&](const std::string& figure, const std::vector<double>& ours,
                          const std::vector<double>& floor) {
    harness.Report({figure, Median(ours), "s", Median(floor), MedianRatio(ours, floor),
                    static_cast<int>(ours.size())});
  };
  report(name, duel.ours.p50, duel.floor.p50);
  report(absl::StrCat(name, "_p99"), duel.ours.p99, duel.floor.p99);
}

}  // namespace larder::bench
