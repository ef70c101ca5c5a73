// larder-llama runs a prompt through llama.cpp, and takes the KV of its beginning from Larder if
// Larder has it.
//
// Exit codes: 0 the program printed an answer, help or, with --bench-lengths, figures of restores
// that were complete and gave the computed answers; 1 it failed; 2 the command line cannot be
// parsed.  Except with --bench-lengths, it is no error if no daemon answers, no profile can be
// measured or no picture written: a line on standard error then says so.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/llama_cpp/bench_lengths.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/measure_profile.h"
#include "client/llama_cpp/model_revision.h"
#include "client/llama_cpp/prompt_cache.h"
#include "client/llama_cpp/report.h"
#include "client/llama_cpp/restore_picture.h"
#include "client/llama_cpp/run.h"
#include "client/llama_cpp/svg_plot.h"
#include "client/restore/costs/profile.h"
#include "storage/status_macros.h"
#include "storage/token_bucket.h"

namespace larder::llama {
namespace {

struct Flags {
  EngineOptions engine;
  PromptCacheOptions cache;
  RunOptions run;
  std::string prompt_file;
  std::string question;
  uint32_t tokens = 0;       // 0: the whole prompt
  std::string profile_file;  // "": a file in the user's cache folder
  std::string picture_file = "larder-restore.svg";
  uint64_t link_rate = 0;  // B/s; 0: no emulated link
  double decode_budget_ms = 250;
  bool no_larder = false;
  bool json = false;
  bool bench = false;
  std::vector<uint32_t> lengths{std::begin(kBenchLengths), std::end(kBenchLengths)};
};

// Options for how the beginning of the prompt is restored.
void DeclareRestore(CLI::App* app, Flags* flags) {
  const std::map<std::string, RestoreMode> modes = {{"compute", RestoreMode::kCompute},
                                                    {"load", RestoreMode::kLoad},
                                                    {"both", RestoreMode::kBoth},
                                                    {"auto", RestoreMode::kAuto}};
  app->add_option(
         "--mode", flags->run.mode,
         "compute: compute all of the prompt; load: load what is stored and compute the rest; "
         "both: do both at once, from both ends; auto: both, or the one that finishes sooner "
         "(default: load)")
      ->transform(CLI::CheckedTransformer(modes, CLI::ignore_case).description("MODE"));
  app->add_option("--link-rate", flags->link_rate,
                  "emulate a link with this many bytes per second for loads, such as 6MB")
      ->transform(CLI::AsSizeValue(true));
  app->add_option(
      "--profile", flags->profile_file,
      "file with what computing and loading cost; if it does not exist, it is measured, which "
      "takes several seconds, and written (default: one file per model and number of threads in "
      "the user's cache folder)");
  app->add_option("--picture", flags->picture_file,
                  "SVG file that shows what both or auto did ('': none)")
      ->capture_default_str();
  app->add_option("--decode-sequences", flags->run.decode_sequences,
                  "number of other texts that the engine decodes during both or auto")
      ->check(CLI::Range(0u, Engine::kOthersMax));
  app->add_option("--decode-budget-ms", flags->decode_budget_ms,
                  "the most time between two tokens of such a text; the restore's steps fit into "
                  "what decoding leaves of it")
      ->check(CLI::Range(1.0, 60'000.0))
      ->capture_default_str();
}

void Declare(CLI::App* app, Flags* flags) {
  app->add_option("--model", flags->engine.model_path, "GGUF file")->required();
  app->add_option("--prompt-file", flags->prompt_file, "file with the text of the prompt")
      ->required();
  app->add_option("--question", flags->question, "question that follows the text");
  app->add_option("--tokens", flags->tokens, "use only the first N tokens of the prompt (0: all)");
  app->add_option("--predict", flags->run.predict, "the most tokens of the answer")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--context", flags->engine.context_tokens, "tokens that the context holds")
      ->check(CLI::Range(512, 131072))
      ->capture_default_str();
  app->add_option("--threads", flags->engine.threads, "threads that compute (0: one per core)");
  app->add_option("--engine-id", flags->cache.engine_id, "name of this engine")
      ->capture_default_str();
  app->add_option("--socket-dir", flags->cache.socket_dir,
                  "folder of larderd's socket files (default: $LARDER_SOCKET_DIR)");
  app->add_option("--revision", flags->cache.revision,
                  "name of the model's weights (default: SHA-256 of the whole model file)");
  app->add_flag("--no-larder", flags->no_larder, "compute everything, without a daemon");
  app->add_flag("--store,!--no-store", flags->run.store, "store what was computed (default: yes)");
  app->add_flag("--wait-durable", flags->run.wait_durable,
                "wait until the stored blocks are on the daemon's disk, at most 10 s");
  DeclareRestore(app, flags);
  app->add_flag("--json", flags->json, "print one line of JSON");
  app->add_flag("--bench-lengths", flags->bench,
                "measure computed against restored prompts over several lengths");
  app->add_option("--lengths", flags->lengths, "lengths for --bench-lengths, in tokens")
      ->delimiter(',')
      ->check(CLI::Range(33, 131072));
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "larder-llama: %s\n", status.ToString().c_str());
  return 1;
}

void Warn(const char* what, const absl::Status& why) {
  std::fprintf(stderr, "larder-llama: %s: %s\n", what, why.ToString().c_str());
}

absl::StatusOr<std::vector<Token>> ReadPrompt(const Flags& flags, const Engine& engine) {
  std::ifstream file(flags.prompt_file, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", flags.prompt_file));
  std::string message{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return absl::DataLossError(absl::StrCat("cannot read ", flags.prompt_file));
  if (!flags.question.empty()) absl::StrAppend(&message, "\n\n", flags.question);
  absl::StatusOr<std::vector<Token>> tokens = engine.Tokenize(engine.ChatPrompt(message));
  LARDER_RETURN_IF_ERROR(tokens.status());
  if (tokens->empty())
    return absl::InvalidArgumentError(absl::StrCat(flags.prompt_file, " is empty"));
  if (flags.tokens != 0 && flags.tokens < tokens->size()) tokens->resize(flags.tokens);
  return tokens;
}

// Sets the name of the model and of its weights.
absl::Status NameModel(Flags* flags) {
  const std::string& path = flags->engine.model_path;
  flags->cache.model = path.substr(path.rfind('/') + 1);
  if (!flags->cache.revision.empty()) return absl::OkStatus();
  LARDER_ASSIGN_OR_RETURN(flags->cache.revision, ModelRevision(path));
  return absl::OkStatus();
}

int Bench(const Flags& flags, const std::vector<Token>& prompt, Engine* engine) {
  const absl::StatusOr<std::vector<LengthResult>> results =
      BenchLengths(prompt, flags.lengths, flags.run.predict, flags.cache, engine);
  if (!results.ok()) return Fail(results.status());
  std::fputs(BenchAsText(*results).c_str(), flags.json ? stderr : stdout);
  std::fputs(BenchAsJson(*results).c_str(), stdout);
  for (const LengthResult& result : *results) {
    if (result.whole_hit() && result.same_answer() && result.same_logits()) continue;
    return Fail(absl::InternalError(
        absl::StrCat("at ", result.cold.prompt_tokens,
                     " tokens the restored answer differs from the computed one, or not "
                     "everything was restored: ",
                     result.restored.cache_status.ToString())));
  }
  return 0;
}

// Returns the path of --profile, or else the default: one file for each model, weights and number
// of threads, in the user's cache folder, which it tries to make.  Returns FailedPrecondition if
// neither --profile nor HOME nor XDG_CACHE_HOME is set.
absl::StatusOr<std::string> ProfilePath(const Flags& flags, const Engine& engine) {
  if (!flags.profile_file.empty()) return flags.profile_file;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache == nullptr && home == nullptr) {
    return absl::FailedPreconditionError(
        "neither HOME nor XDG_CACHE_HOME is set; name a file for the profile with --profile FILE");
  }
  const std::string folder =
      absl::StrCat(cache != nullptr ? cache : absl::StrCat(home, "/.cache"), "/larder");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return absl::StrCat(folder, "/", flags.cache.model, "-", ShortRevision(flags.cache.revision), "-",
                      engine.threads(), "-threads.profile.toml");
}

// Reads the profile at ProfilePath.  If no file is found there, measures a profile and tries to
// write it there.  Returns FailedPrecondition if no profile could be measured or ProfilePath
// failed; any other error means that the file is wrong or cannot be read, which the user must
// correct.
absl::StatusOr<Profile> ProfileFor(const Flags& flags, Engine* engine) {
  LARDER_ASSIGN_OR_RETURN(const std::string path, ProfilePath(flags, *engine));
  absl::StatusOr<Profile> profile = ReadProfile(path);
  if (profile.ok() &&
      (profile->layers != engine->shape().layers() || profile->channels.size() != 2)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " does not fit this model, or has not two channels; delete it to have "
                     "a new profile measured"));
  }
  if (profile.ok() || !absl::IsNotFound(profile.status())) return profile;
  std::fprintf(stderr, "larder-llama: measuring the profile %s; some seconds, once\n",
               path.c_str());
  profile = MeasureProfile(flags.cache, engine);
  if (!profile.ok()) return absl::FailedPreconditionError(profile.status().ToString());
  if (absl::Status s = WriteProfile(*profile, path); !s.ok()) Warn("the profile is not kept", s);
  return profile;
}

// Sets in *run the link, and for kBoth and kAuto the profile and the decode budget.  If ProfileFor
// returns FailedPrecondition, sets the mode to kCompute.  Returns an error if the user must correct
// something, such as --decode-sequences with another mode.
absl::Status PrepareRestore(const Flags& flags, TokenBucket* link, Engine* engine,
                            RunOptions* run) {
  run->link = link;
  if (run->mode != RestoreMode::kBoth && run->mode != RestoreMode::kAuto) {
    if (run->decode_sequences == 0) return absl::OkStatus();
    return absl::InvalidArgumentError("--decode-sequences needs --mode both or auto");
  }
  absl::StatusOr<Profile> profile = ProfileFor(flags, engine);
  if (absl::IsFailedPrecondition(profile.status())) {
    Warn("without a profile, everything is computed", profile.status());
    run->mode = RestoreMode::kCompute;
    run->decode_sequences = 0;
    return absl::OkStatus();
  }
  LARDER_RETURN_IF_ERROR(profile.status());
  run->profile =
      link == nullptr ? *std::move(profile) : BehindLink(*std::move(profile), link->bytes_per_s());
  run->decode_budget_s = flags.decode_budget_ms / 1e3;
  return absl::OkStatus();
}

absl::Status DrawRestore(const Flags& flags, RunResult* result) {
  if (!result->restored || flags.picture_file.empty()) return absl::OkStatus();
  std::string title =
      absl::StrFormat("%u tokens, first token after %.2f s", result->prompt_tokens, result->ttft_s);
  if (result->link_bytes_per_s > 0)
    absl::StrAppendFormat(&title, ", emulated link of %.3g MB/s", result->link_bytes_per_s / 1e6);
  std::error_code error;
  const std::string path = std::filesystem::absolute(flags.picture_file, error).string();
  const absl::Status drawn = WritePicture(PictureOf(result->restored->what, title), path);
  if (drawn.ok()) result->picture = path;
  return drawn;
}

int RunOnce(const Flags& flags, const std::vector<Token>& prompt, Engine* engine) {
  std::unique_ptr<PromptCache> cache;
  if (!flags.no_larder) {
    absl::StatusOr<std::unique_ptr<PromptCache>> connected =
        PromptCache::Connect(flags.cache, engine->shape());
    if (connected.ok()) {
      cache = *std::move(connected);
    } else {
      Warn("without Larder, everything is computed", connected.status());
    }
  }
  std::optional<TokenBucket> link;
  if (flags.link_rate > 0) link.emplace(static_cast<double>(flags.link_rate));
  RunOptions run = flags.run;
  if (cache != nullptr) {
    if (absl::Status s = PrepareRestore(flags, link ? &*link : nullptr, engine, &run); !s.ok())
      return Fail(s);
  }
  absl::StatusOr<RunResult> result = RunPrompt(prompt, run, engine, cache.get());
  if (!result.ok()) return Fail(result.status());
  if (absl::Status s = DrawRestore(flags, &*result); !s.ok()) Warn("no picture is written", s);
  std::fputs((flags.json ? RunAsJson(*result) : RunAsText(*result)).c_str(), stdout);
  return 0;
}

int Run(Flags* flags) {
  const absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Load(flags->engine);
  if (!engine.ok()) return Fail(engine.status());
  if (absl::Status s = NameModel(flags); !s.ok()) return Fail(s);
  const absl::StatusOr<std::vector<Token>> prompt = ReadPrompt(*flags, **engine);
  if (!prompt.ok()) return Fail(prompt.status());
  return flags->bench ? Bench(*flags, *prompt, engine->get())
                      : RunOnce(*flags, *prompt, engine->get());
}

}  // namespace
}  // namespace larder::llama

int main(int argc, char** argv) {
  CLI::App app(
      "Runs a prompt through llama.cpp, and takes the KV of its beginning from Larder if Larder "
      "has it.",
      "larder-llama");
  larder::llama::Flags flags;
  larder::llama::Declare(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return larder::llama::Run(&flags);
}
