// Is a restore that computes and loads at once as fast as it could be, on a real engine?  The
// quickstart's model, prefixes of about 1k, 2k and 4k tokens, from the pool and from the disk of a
// real daemon, over emulated links with rates around the crossing, where loading takes as long as
// computing.
//
// In every round computing alone, loading alone and `auto` take turns; an answer that differs from
// the computed one is an error.  Where loading alone is much slower than computing, it runs in the
// first round only, or its time is calculated from the link's rate and the bytes.  The optimum cuts
// chunks where the engine may cut them and uses the times of chunks and loads in the same rounds; a
// part of a chunk is assumed to take its share of the chunk's time.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/harness/harness.h"
#include "bench/harness/processes.h"
#include "bench/harness/temporary_directory.h"
#include "bench/restore_sim/row.h"
#include "client/llama_cpp/measure_profile.h"
#include "client/llama_cpp/model_revision.h"
#include "client/llama_cpp/run.h"
#include "client/restore/staircase.h"
#include "larder/v1/cache.grpc.pb.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

using llama::Engine;
using llama::PromptCache;
using llama::RestoreMode;
using llama::RunOptions;
using llama::RunResult;
using llama::Token;

constexpr char kVsBest[] = "restore_llama_auto_vs_best";
constexpr char kVsOptimum[] = "restore_llama_auto_vs_optimum";
constexpr char kCrossing[] = "restore_llama_crossing_speedup";
constexpr char kDecode[] = "restore_llama_decode_p99";

constexpr uint32_t kBehind = 16;  // tokens that are computed after each prefix
constexpr uint32_t kPredict = 16;
// Multiples of the rate at which loading a prefix takes as long as computing it.
constexpr std::array kRates = {0.35, 0.7, 1.0, 1.4, 2.8, 8.0};
// Multiples of the time of computing alone.  Loading alone that takes longer than kRivalMax is not
// run again after the first round; longer than kRunMax, it is not run at all.
constexpr double kRivalMax = 1.15, kRunMax = 2;
constexpr uint32_t kDecodeSequences = 2;
constexpr double kDecodeBudget_s = 0.6;

// A daemon that stores the prompts, in its pool or on its disk alone.
struct Source {
  const char* name = "";
  bool disk = false;
  std::unique_ptr<DaemonProcess> daemon = {};

  [[nodiscard]] absl::Status LeavePool() const {
    if (!disk) return absl::OkStatus();
    const auto cache = v1::Cache::NewStub(grpc::CreateChannel(
        "unix:" + daemon->socket_dir() + "/control.sock", grpc::InsecureChannelCredentials()));
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    request.add_tiers(v1::TIER_HOST);
    v1::ClearReply reply;
    grpc::ClientContext context;
    const grpc::Status status = cache->Clear(&context, request, &reply);
    if (status.ok()) return absl::OkStatus();
    return absl::InternalError("Clear of the pool: " + status.error_message());
  }
};

// What all cells share.
struct Setting {
  std::unique_ptr<Engine> engine = {};
  std::string model = {}, revision = {};
  std::vector<Token> text = {};
  Profile profile = {};
};

// One prefix in one source; its cells differ in their rates.
struct Prompt {
  std::span<const Token> tokens = {};
  Source* source = nullptr;
  std::unique_ptr<PromptCache> cache = {};
  RunResult computed = {};  // computed once; all other answers must equal it
  std::vector<double> compute_s = {};
  std::vector<std::vector<double>> chunk_s = {};  // per chunk, all rounds
  std::vector<double> rest_s = {};                // after the prefix

  [[nodiscard]] uint32_t prefix() const { return PromptCache::RestorableTokens(tokens.size()); }
};

struct Cell {
  Prompt* prompt = nullptr;
  double factor = 1;  // one of kRates
  double bytes = 0, bytes_per_s = 0;
  std::vector<double> auto_s = {}, load_s = {}, moved_s = {};

  // Per round, the time of the single resource with the better median.
  [[nodiscard]] std::vector<double> BestSingle() const {
    if (Median(prompt->compute_s) <= Median(load_s)) return prompt->compute_s;
    return load_s;
  }
  [[nodiscard]] double VsBest() const { return MedianRatio(auto_s, BestSingle()); }
};

absl::StatusOr<std::string> ModelPath() {
  FILE* const pipe = popen(LARDER_SOURCE_DIR "/deploy/fetch-model.sh", "r");
  std::string path;
  char part[512];
  for (size_t n = 0; (n = fread(part, 1, sizeof part, pipe)) > 0;) path.append(part, n);
  if (pclose(pipe) != 0)
    return absl::UnavailableError("deploy/fetch-model.sh failed; its message is above");
  return path.substr(0, path.find('\n'));
}

// LARDER_TEST_THREADS=1 is for busy machines: llama.cpp's threads wait for each other, and so for
// the slowest of them.
uint32_t Threads() {
  const char* const threads = std::getenv("LARDER_TEST_THREADS");
  return threads == nullptr ? 0 : static_cast<uint32_t>(std::strtoul(threads, nullptr, 10));
}

// The text is the quickstart's, repeated until it is long enough.
absl::StatusOr<Setting> Prepare(uint32_t tokens) {
  Setting setting;
  LARDER_ASSIGN_OR_RETURN(const std::string path, ModelPath());
  LARDER_ASSIGN_OR_RETURN(setting.engine, Engine::Load({.model_path = path, .threads = Threads()}));
  setting.model = path.substr(path.rfind('/') + 1);
  LARDER_ASSIGN_OR_RETURN(setting.revision, llama::ModelRevision(path));
  std::ifstream file(LARDER_SOURCE_DIR "/deploy/quickstart.txt");
  const std::string message{std::istreambuf_iterator<char>(file), {}};
  while (setting.text.size() < tokens) {
    LARDER_ASSIGN_OR_RETURN(const auto more, setting.engine->Tokenize(message));
    if (more.empty()) return absl::NotFoundError("deploy/quickstart.txt is empty");
    setting.text.insert(setting.text.end(), more.begin(), more.end());
  }
  return setting;
}

llama::PromptCacheOptions CacheOptions(const Setting& setting, const Source& source) {
  return {.socket_dir = source.daemon->socket_dir(),
          .model = setting.model,
          .revision = setting.revision};
}

absl::StatusOr<Source> StartSource(bool disk, const std::string& folder) {
  Source source{disk ? "disk" : "pool", disk};
  DaemonConfig config{.pool = MiB(512)};
  if (disk) config.more_flags = {"--disk", folder, "--disk-limit", "2GiB"};
  LARDER_ASSIGN_OR_RETURN(source.daemon, DaemonProcess::Start(config));
  return source;
}

// Computes the prompt and stores it, so that all runs after it find the same state.
absl::StatusOr<std::unique_ptr<Prompt>> StorePrompt(Setting& setting, Source* source,
                                                    uint32_t prefix) {
  auto prompt = std::make_unique<Prompt>();
  prompt->tokens = std::span(setting.text).first(prefix + kBehind);
  prompt->source = source;
  prompt->chunk_s.resize((prefix + Engine::kBatchTokens - 1) / Engine::kBatchTokens);
  LARDER_ASSIGN_OR_RETURN(
      prompt->cache, PromptCache::Connect(CacheOptions(setting, *source), setting.engine->shape()));
  const RunOptions options{
      .predict = kPredict, .mode = RestoreMode::kCompute, .wait_durable = source->disk};
  LARDER_ASSIGN_OR_RETURN(
      auto computed, RunPrompt(prompt->tokens, options, setting.engine.get(), prompt->cache.get()));
  if (!computed.cache_status.ok()) return computed.cache_status;
  if (source->disk && !computed.durable)
    return absl::DeadlineExceededError("the stored prompt is not on disk after 10 s");
  prompt->computed = std::move(computed);
  return prompt;
}

// ---- the contestants

absl::Status Compute(Setting& setting, Prompt& prompt) {
  Engine& engine = *setting.engine;
  LARDER_RETURN_IF_ERROR(engine.ResetContext());
  const double begin = SecondsNow();
  double at = begin;
  for (size_t chunk = 0; chunk < prompt.chunk_s.size(); ++chunk) {
    const auto first = static_cast<uint32_t>(chunk) * Engine::kBatchTokens;
    const uint32_t end = std::min(first + Engine::kBatchTokens, prompt.prefix());
    LARDER_RETURN_IF_ERROR(engine.Decode(prompt.tokens, first, end));
    prompt.chunk_s[chunk].push_back(SecondsNow() - at);
    at = SecondsNow();
  }
  const auto end = static_cast<uint32_t>(prompt.tokens.size());
  LARDER_RETURN_IF_ERROR(engine.Decode(prompt.tokens, prompt.prefix(), end));
  prompt.rest_s.push_back(SecondsNow() - at);
  prompt.compute_s.push_back(SecondsNow() - begin);
  return absl::OkStatus();
}

absl::StatusOr<RunResult> Run(Setting& setting, const Prompt& prompt, RestoreMode mode,
                              double bytes_per_s, uint32_t sequences = 0) {
  LARDER_RETURN_IF_ERROR(prompt.source->LeavePool());
  TokenBucket link(bytes_per_s);
  const RunOptions options{.predict = kPredict,
                           .mode = mode,
                           .store = false,
                           .profile = llama::BehindLink(setting.profile, bytes_per_s),
                           .link = &link,
                           .decode_sequences = sequences,
                           .decode_budget_s = kDecodeBudget_s};
  auto result = RunPrompt(prompt.tokens, options, setting.engine.get(), prompt.cache.get());
  LARDER_RETURN_IF_ERROR(result.status());
  if (!result->cache_status.ok()) return result->cache_status;
  if (result->answer == prompt.computed.answer &&
      result->first_logits == prompt.computed.first_logits)
    return result;
  return absl::InternalError(absl::StrCat("an answer of ", prompt.prefix(), " tokens from the ",
                                          prompt.source->name,
                                          " is not the computed one: ", result->text));
}

absl::Status RunRound(Setting& setting, std::span<Cell> cells, int round) {
  const Prompt* computed = nullptr;
  for (Cell& cell : cells) {
    Prompt& prompt = *cell.prompt;
    if (computed != &prompt) {
      LARDER_RETURN_IF_ERROR(Compute(setting, prompt));
      computed = &prompt;
    }
    LARDER_ASSIGN_OR_RETURN(const auto restored,
                            Run(setting, prompt, RestoreMode::kAuto, cell.bytes_per_s));
    cell.auto_s.push_back(restored.ttft_s);
    if (round == 0 && cell.factor * kRunMax < 1) {
      cell.moved_s.push_back(cell.bytes / cell.bytes_per_s);
      cell.load_s.push_back(cell.moved_s.front() + prompt.rest_s.front());
      continue;
    }
    if (round > 0 && cell.load_s.front() > kRivalMax * prompt.compute_s.front()) {
      cell.load_s.push_back(cell.load_s.front());
      continue;
    }
    LARDER_ASSIGN_OR_RETURN(const auto loaded,
                            Run(setting, prompt, RestoreMode::kLoad, cell.bytes_per_s));
    cell.load_s.push_back(loaded.ttft_s);
    cell.moved_s.push_back(loaded.load_s);
  }
  return absl::OkStatus();
}

// ---- the results

// Seconds until the first token, if no time were lost, with the times of chunks and loads in these
// rounds.
double OptimumSeconds(const Cell& cell) {
  const Prompt& prompt = *cell.prompt;
  PlanInput input{.splits_layers = false};
  for (uint32_t begin = 0; begin < prompt.prefix(); begin += Engine::kCutTokens) {
    const uint32_t tokens = std::min(Engine::kCutTokens, prompt.prefix() - begin);
    const uint32_t chunk = begin / Engine::kBatchTokens * Engine::kBatchTokens;
    const uint32_t of_chunk = std::min(Engine::kBatchTokens, prompt.prefix() - chunk);
    const double compute_s = Median(prompt.chunk_s[chunk / Engine::kBatchTokens]);
    const double load_s = Median(cell.moved_s);
    input.chunks.push_back(
        {.compute_s = compute_s * tokens / of_chunk,
         .loads = {{.channel = ChannelId{1}, .seconds = load_s * tokens / prompt.prefix()}}});
  }
  return BestStaircase(input)->seconds + Median(prompt.rest_s);
}

void ReportCells(Reporter& report, std::span<const Cell> cells) {
  double worst = 0, slowest = 1e9;
  std::vector<double> over_optimum;
  report.Note("prefix source  link MB/s  compute s   load s   auto s  optimum s  /best  /optimum");
  for (const Cell& cell : cells) {
    const double vs_best = cell.VsBest(), optimum = OptimumSeconds(cell);
    worst = std::max(worst, vs_best);
    over_optimum.push_back(Median(cell.auto_s) / optimum);
    if (cell.factor == 1) slowest = std::min(slowest, 1 / vs_best);
    report.Note(absl::StrFormat(
        "%6u %6s %10.2f %10.3f %8.3f %8.3f %10.3f %6.3f %9.3f", cell.prompt->prefix(),
        cell.prompt->source->name, cell.bytes_per_s / 1e6, Median(cell.prompt->compute_s),
        Median(cell.load_s), Median(cell.auto_s), optimum, vs_best, over_optimum.back()));
  }
  report.Note("all answers and first logits are the computed ones");
  report.Bar(kVsBest, worst, Sense::kAtMost, 1.03);
  report.Bar(kVsOptimum, Median(over_optimum), Sense::kAtMost, 1.10);
  report.Bar(kCrossing, slowest, Sense::kAtLeast, 1.6);
}

// Decodes two other texts while one prefix is restored.
absl::Status ReportDecode(Reporter& report, Setting& setting, const Prompt& prompt,
                          double bytes_per_s, int rounds) {
  std::vector<double> gaps_s, ttft_s;
  for (int round = 0; round < rounds; ++round) {
    LARDER_ASSIGN_OR_RETURN(
        const auto result, Run(setting, prompt, RestoreMode::kAuto, bytes_per_s, kDecodeSequences));
    gaps_s.insert(gaps_s.end(), result.decode_gaps_s.begin(), result.decode_gaps_s.end());
    ttft_s.push_back(result.ttft_s);
  }
  report.Note(absl::StrFormat("%u tokens beside %u sequences: first token after %.3f s; %u steps",
                              prompt.prefix(), kDecodeSequences, Median(ttft_s), gaps_s.size()));
  report.Bar(kDecode, Quantile(gaps_s, 0.99), Sense::kAtMost, kDecodeBudget_s, "s");
  return absl::OkStatus();
}

absl::Status Measure(Reporter& report, const std::string& folder) {
  const std::vector<uint32_t> prefixes =
      report.quick() ? std::vector<uint32_t>{1024} : std::vector<uint32_t>{1024, 2048, 4096};
  const int rounds = report.quick() ? 2 : 5;
  LARDER_ASSIGN_OR_RETURN(auto setting, Prepare(prefixes.back() + kBehind));
  std::vector<Source> sources;
  for (const bool disk : {false, true}) {
    LARDER_ASSIGN_OR_RETURN(auto source, StartSource(disk, folder + "/disk"));
    sources.push_back(std::move(source));
  }
  LARDER_ASSIGN_OR_RETURN(
      setting.profile,
      llama::MeasureProfile(CacheOptions(setting, sources.front()), setting.engine.get()));

  std::vector<std::unique_ptr<Prompt>> prompts;
  std::vector<Cell> cells;
  for (const uint32_t prefix : prefixes) {
    for (Source& source : sources) {
      LARDER_ASSIGN_OR_RETURN(auto prompt, StorePrompt(setting, &source, prefix));
      prompts.push_back(std::move(prompt));
      const double bytes = static_cast<double>(setting.engine->shape().StateBytes(prefix).value());
      for (const double factor : kRates) {
        if (report.quick() && factor != 0.35 && factor != 1 && factor != 2.8) continue;
        cells.push_back({.prompt = prompts.back().get(),
                         .factor = factor,
                         .bytes = bytes,
                         .bytes_per_s = factor * bytes / prompts.back()->computed.ttft_s});
      }
    }
  }
  for (int round = 0; report.Wants({kVsBest, kVsOptimum, kCrossing}) && round < rounds; ++round) {
    std::fprintf(stderr, "restore_llama: round %d of %d\n", round + 1, rounds);
    LARDER_RETURN_IF_ERROR(RunRound(setting, cells, round));
  }
  if (report.Wants({kVsBest, kVsOptimum, kCrossing})) ReportCells(report, cells);
  if (!report.Wants({kDecode})) return absl::OkStatus();
  const Prompt& prompt = *prompts[prompts.size() / 2];
  const double crossing =
      static_cast<double>(setting.engine->shape().StateBytes(prompt.prefix()).value()) /
      prompt.computed.ttft_s;
  return ReportDecode(report, setting, prompt, crossing, rounds);
}

int Main(int argc, char** argv) {
  Harness harness(argc, argv, {kVsBest, kVsOptimum, kCrossing, kDecode});
  if (harness.done()) return *harness.done();
  Reporter report(harness);
  const absl::Status measured =
      InDiskDirectory([&](const std::string& folder) { return Measure(report, folder); });
  if (!measured.ok()) return harness.Fail(measured);
  if (report.missed() > 0) report.Note(absl::StrCat(report.missed(), " bars missed"));
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) { return larder::bench::Main(argc, argv); }
