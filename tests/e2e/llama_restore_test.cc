// Restores a real model's prefix by computing and loading at the same time.  The engine's state
// must equal, bit for bit, the state after computing all of it, whichever parts were loaded.
//
// Below LARDER_TEST_SCALE=1 (default 0.1) some lengths of prompts, drawn at random, are left out;
// LARDER_TEST_SEED replays the draw.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/llama_cpp/measure_profile.h"
#include "client/llama_cpp/model_revision.h"
#include "client/llama_cpp/restore_picture.h"
#include "client/llama_cpp/run.h"
#include "larder/v1/cache.grpc.pb.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/llama_fixture.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::llama {
namespace {

using e2e::DaemonProcess;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Lt;
using ::testing::Not;

constexpr double kToken_s = 1.0 / Engine::kBatchTokens;  // in profiles: a second per chunk

class LlamaRestoreTest : public LlamaFixture {
 protected:
  void Start(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(), {"--pool", "64MiB"});
    cache_.reset();
    daemon_.reset();
    daemon_ = std::make_unique<DaemonProcess>(flags, DaemonProcess::Options{.folder = folder_});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    auto cache = ConnectCache(folder_->path());
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  // Starts a daemon and stores the prompt's blocks in it.
  void StartStored(std::vector<std::string> flags = {}) {
    ASSERT_NO_FATAL_FAILURE(Start(std::move(flags)));
    ASSERT_NO_FATAL_FAILURE(StorePrompt(cache_.get()));
  }
  absl::StatusOr<RunResult> Run(RestoreMode mode, double bytes_per_s, uint32_t sequences = 0) {
    TokenBucket link(bytes_per_s);
    const RunOptions options{.predict = kPredict,
                             .mode = mode,
                             .store = false,
                             .profile = Believed(kToken_s, bytes_per_s),
                             .link = &link,
                             .decode_sequences = sequences,
                             .decode_budget_s = 0.5};
    return RunPrompt(*prompt_, options, engine_, cache_.get());
  }
  void ClearBlock(std::span<const Token> prompt, uint32_t block) {
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_BLOCKS);
    request.add_tiers(v1::TIER_HOST);
    request.mutable_blocks()->set_digests(e2e::Packed(cache_->BlockDigests(prompt)[block]));
    v1::ClearReply reply;
    grpc::ClientContext context;
    const auto cleared =
        v1::Cache::NewStub(daemon_->ControlChannel())->Clear(&context, request, &reply);
    ASSERT_TRUE(cleared.ok()) << cleared.error_message();
    ASSERT_EQ(reply.tiers(0).blocks(), 1u);
  }
  std::string Program(const std::string& flags) const {
    return absl::StrCat(
        LARDER_LLAMA_PATH " --model ", ModelPath(),
        " --prompt-file " LARDER_SOURCE_DIR
        "/deploy/quickstart.txt --revision program --threads 1 --tokens 600 --predict 4 "
        "--socket-dir ",
        folder_->path(), " ", flags);
  }

  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<PromptCache> cache_;  // destroyed before its daemon
};

std::vector<std::byte> Part(const StateView& state, TokenRange tokens) {
  StateJoiner joiner(state.shape(), tokens);
  const uint32_t count = tokens.end - tokens.begin;
  for (size_t layer = 0; layer < state.shape().layers(); ++layer) {
    std::vector<std::byte> segment(state.shape().SegmentBytes(layer, count).value());
    state.CopySegment(layer, tokens, segment);
    joiner.PlaceSegment(layer, tokens, segment);
  }
  const std::span<const std::byte> joined = joiner.Finish(count);
  return {joined.begin(), joined.end()};
}

TEST_F(LlamaRestoreTest, AppendedPartsEqualTheComputedState) {
  const uint32_t border = PromptCache::RestorableTokens(kPromptTokens);
  ASSERT_TRUE(engine_->ResetContext().ok());
  ASSERT_TRUE(engine_->Decode(*prompt_, 0, border).ok());
  const auto whole = engine_->SaveState();
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto view = StateView::Parse(*whole);
  ASSERT_TRUE(view.ok()) << view.status();
  for (const uint32_t meet : {0u, 256u, 512u}) {
    ASSERT_TRUE(engine_->ResetContext().ok());
    if (meet > 0) {
      ASSERT_TRUE(engine_->Decode(*prompt_, 0, meet).ok());
    }
    for (uint32_t begin = meet; begin < border; begin += 96) {
      const auto part = Part(*view, {begin, std::min(border, begin + 96)});
      const absl::Status appended = engine_->AppendState(part);
      ASSERT_TRUE(appended.ok()) << appended;
    }
    const auto again = engine_->SaveState();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(*again == *whole) << "the parts begin at token " << meet;
    ASSERT_TRUE(engine_->Decode(*prompt_, border, kPromptTokens).ok());
    const std::span<const float> logits = engine_->Logits();
    EXPECT_EQ(std::memcmp(logits.data(), computed_->first_logits.data(), logits.size_bytes()), 0)
        << "the parts begin at token " << meet;
  }
}

TEST_F(LlamaRestoreTest, ADamagedPartLeavesTheStateUnchanged) {
  ASSERT_TRUE(engine_->ResetContext().ok());
  ASSERT_TRUE(engine_->Decode(*prompt_, 0, 64).ok());
  const auto before = engine_->SaveState();
  ASSERT_TRUE(before.ok()) << before.status();
  const auto view = StateView::Parse(*before);
  ASSERT_TRUE(view.ok()) << view.status();
  std::vector<std::byte> part = Part(*view, {32, 64});
  part.resize(part.size() / 2);
  EXPECT_EQ(engine_->AppendState(part).code(), absl::StatusCode::kInternal);
  const auto after = engine_->SaveState();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE(*after == *before);
}

TEST_F(LlamaRestoreTest, EveryModeGivesTheComputedAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartStored());
  const uint32_t border = PromptCache::RestorableTokens(kPromptTokens);
  for (const double rate : {5e6, 1e9}) {
    for (const RestoreMode mode :
         {RestoreMode::kCompute, RestoreMode::kLoad, RestoreMode::kBoth, RestoreMode::kAuto}) {
      if (mode == RestoreMode::kCompute && rate == 1e9) continue;  // it does not use the link
      SCOPED_TRACE(absl::StrCat(ToString(mode), " at ", rate));
      const auto result = Run(mode, rate);
      ASSERT_TRUE(result.ok()) << result.status();
      ExpectComputed(*result);
      EXPECT_TRUE(result->cache_status.ok()) << result->cache_status;
      if (mode == RestoreMode::kCompute) {
        EXPECT_EQ(result->hit_tokens, 0);
      } else if (mode == RestoreMode::kLoad) {
        EXPECT_EQ(result->hit_tokens, border);
      }
      ASSERT_EQ(result->restored.has_value(),
                mode == RestoreMode::kBoth || mode == RestoreMode::kAuto);
      if (!result->restored) continue;
      const Restorer::Restored& what = result->restored->what;
      EXPECT_EQ(what.computed_tokens + what.loaded_tokens, border);
      EXPECT_EQ(result->restored->met_at_token(), what.computed_tokens)
          << "there are no holes, so all loaded tokens follow the computed ones";
      EXPECT_EQ(what.computed_tokens % Engine::kCutTokens, 0);
      if (mode == RestoreMode::kBoth) {
        EXPECT_THAT(what.computed_tokens, Gt(0u));
      } else if (rate == 1e9) {
        EXPECT_EQ(what.computed_tokens, 0) << "tokens were computed that could be loaded sooner";
      }
    }
  }
}

TEST_F(LlamaRestoreTest, BlocksThatAreNotStoredAreComputed) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto result = Run(RestoreMode::kAuto, 10e6);
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectComputed(*result);
  EXPECT_TRUE(result->cache_status.ok()) << result->cache_status;
  EXPECT_EQ(result->hit_tokens, 0);
}

TEST_F(LlamaRestoreTest, WithoutItsDaemonEverythingIsComputed) {
  ASSERT_NO_FATAL_FAILURE(StartStored());
  daemon_->Kill9();
  const auto result = Run(RestoreMode::kAuto, 10e6);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->answer, computed_->answer);
  EXPECT_EQ(result->hit_tokens, 0);
  EXPECT_FALSE(result->cache_status.ok()) << "the result does not say that the daemon failed";
}

// While other sequences are decoded, steps are cut to their budget.
TEST_F(LlamaRestoreTest, DecodingOtherSequencesDoesNotChangeTheAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartStored());
  for (const RestoreMode mode : {RestoreMode::kBoth, RestoreMode::kAuto}) {
    SCOPED_TRACE(ToString(mode));
    const auto result = Run(mode, 6e6, /*sequences=*/2);
    ASSERT_TRUE(result.ok()) << result.status();
    ExpectComputed(*result);
    EXPECT_TRUE(result->cache_status.ok()) << result->cache_status;
    EXPECT_THAT(result->decode_gaps_s.size(), Gt(2u));
    EXPECT_THAT(result->restored->what.loaded_tokens, Gt(0u));
  }
}

TEST_F(LlamaRestoreTest, AFittedProfileExplainsTheMeasuredTimes) {
  const ComputeCost cost{.fixed_s = 0.02, .linear_s = 0.003, .quadratic_s = 2e-7};
  ChunkTimes times{.first = {0, 256}, .later = {768, 1024}, .small = {1024, 1056}};
  times.first_s = cost.Seconds(times.first);
  times.later_s = cost.Seconds(times.later);
  times.small_s = cost.Seconds(times.small);
  const ComputeCost fitted = FitComputeCost(times);
  EXPECT_NEAR(fitted.fixed_s, cost.fixed_s, 1e-9);
  EXPECT_NEAR(fitted.linear_s, cost.linear_s, 1e-12);
  EXPECT_NEAR(fitted.quadratic_s, cost.quadratic_s, 1e-15);
  // Times that were disturbed must not give a negative cost.
  times.first_s *= 3;
  times.small_s *= 9;
  const ComputeCost disturbed = FitComputeCost(times);
  EXPECT_THAT(disturbed.fixed_s, Ge(0));
  EXPECT_THAT(disturbed.linear_s, Ge(0));
  EXPECT_THAT(disturbed.quadratic_s, Ge(0));
}

TEST_F(LlamaRestoreTest, APictureHasASeriesForEachSourceOfTokens) {
  Restorer::Restored restored;
  restored.spans = {{{0, 256}, ChannelId::kNowhere, 0, 1, true},
                    {{544, 576}, kDiskChannel, 0, 0.5, true},
                    {{512, 544}, kPoolChannel, 0, 0.4, true},
                    {{224, 256}, kPoolChannel, 0.4, 0.8, false}};
  const Plot plot = PictureOf(restored, "title");
  ASSERT_EQ(plot.series.size(), 4);
  EXPECT_EQ(plot.series[0].name, "computed");
  EXPECT_EQ(plot.series[0].boxes[0].y_end, 256);
  EXPECT_EQ(plot.series[1].boxes[0].y_begin, 512);
  EXPECT_EQ(plot.series[2].boxes[0].x_end, 0.5);
  EXPECT_TRUE(plot.series[3].hollow);
  EXPECT_EQ(PictureOf({}, "nothing").series.size(), 0);
}

TEST_F(LlamaRestoreTest, TheProgramKeepsItsProfileAndDrawsItsRun) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string profile = folder_->File("profile.toml"), picture = folder_->File("run.svg");
  const std::string flags = absl::StrCat("--json --profile ", profile, " --picture ", picture);
  const auto cold = nlohmann::json::parse(OutputOf(Program("--json --mode compute")));
  int code = -1;
  const std::string first =
      OutputOf(Program(flags + " --mode both --link-rate 10MB 2>&1 >/dev/null"), &code);
  EXPECT_EQ(code, 0) << first;
  EXPECT_THAT(first, HasSubstr(absl::StrCat("measuring the profile ", profile)));
  std::remove(picture.c_str());
  const std::string second = OutputOf(Program(flags + " --mode both --link-rate 10MB 2>&1"), &code);
  EXPECT_EQ(code, 0) << second;
  EXPECT_THAT(second, Not(HasSubstr("measuring")));
  const auto run = nlohmann::json::parse(second);
  EXPECT_EQ(run["answer"], cold["answer"]);
  EXPECT_EQ(run["emulated_link_bytes_per_s"], 10e6);
  EXPECT_EQ(
      run["restore"]["computed_tokens"].get<int>() + run["restore"]["loaded_tokens"].get<int>(),
      576);
  EXPECT_EQ(run["picture"], picture);
  std::ifstream drawn(picture);
  EXPECT_THAT((std::string{std::istreambuf_iterator<char>(drawn), {}}), HasSubstr("</svg>"));
}

// The program can write neither its profile nor its picture, and the answer must be the same.
TEST_F(LlamaRestoreTest, TheProgramAnswersWhereNothingCanBeWritten) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto cold = nlohmann::json::parse(OutputOf(Program("--json --mode compute")));
  const std::string errors = folder_->File("errors");
  int code = -1;
  const auto run = nlohmann::json::parse(
      OutputOf(absl::StrCat("cd /proc && XDG_CACHE_HOME=/dev/null ",
                            Program("--json --mode both --link-rate 10MB 2>" + errors)),
               &code));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(run["answer"], cold["answer"]);
  EXPECT_TRUE(run.contains("restore")) << "the measured profile was not used";
  EXPECT_FALSE(run.contains("picture"));
  const std::string said = OutputOf("cat " + errors);
  EXPECT_THAT(said, HasSubstr("the profile is not kept: "));
  EXPECT_THAT(said, HasSubstr("no picture is written: "));
  EXPECT_THAT(said, HasSubstr(absl::StrCat(ModelPath().substr(ModelPath().rfind('/') + 1), "-",
                                           ShortRevision("program"), "-1-threads.profile.toml")));
  // The blocks that were stored to measure the pool have been cleared.
  const auto cache = PromptCache::Connect({.socket_dir = folder_->path(),
                                           .model = ModelPath().substr(ModelPath().rfind('/') + 1),
                                           .revision = "program",
                                           .salt = "larder-llama/profile"},
                                          engine_->shape());
  ASSERT_TRUE(cache.ok()) << cache.status();
  const auto tiers = (*cache)->Tiers(MeasuredText(), std::chrono::seconds(10));
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_THAT(*tiers, Each(std::nullopt));
}

TEST_F(LlamaRestoreTest, TheProgramComputesWhereNoProfileCanBeMeasured) {
  ASSERT_NO_FATAL_FAILURE(Start());
  int code = -1;
  const std::string said = OutputOf(
      Program("--mode auto --context 700 --profile " + folder_->File("none.toml") + " 2>&1"),
      &code);
  EXPECT_EQ(code, 0) << said;
  EXPECT_THAT(said, HasSubstr("without a profile, everything is computed: "));
  EXPECT_THAT(said, HasSubstr("larger --context"));
}

TEST_F(LlamaRestoreTest, DamagedBlocksAreComputedAndStoredAgain) {
  const std::string disk = folder_->File("disk");
  ASSERT_NO_FATAL_FAILURE(StartStored({"--disk", disk}));
  ASSERT_TRUE(Eventually([&] { return daemon_->Metric("larder_disk_waiting{for=\"spill\"}") == 0; },
                         std::chrono::seconds(30)));
  (void)daemon_->Terminate();
  ASSERT_NO_FATAL_FAILURE(Start({"--disk", disk}));
  for (const auto& file : std::filesystem::recursive_directory_iterator(disk)) {
    if (!file.is_regular_file() || file.file_size() < MiB(1).value()) continue;  // not a data file
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 0; at < file.file_size(); at += 4096) bytes.seekp(at).write("damaged", 7);
  }
  const RunOptions options{
      .predict = kPredict, .mode = RestoreMode::kBoth, .profile = Believed(kToken_s, 1e9)};
  const auto result = RunPrompt(*prompt_, options, engine_, cache_.get());
  ASSERT_TRUE(result.ok()) << result.status();
  ExpectComputed(*result);
  EXPECT_EQ(result->hit_tokens, 0);
  EXPECT_THAT(result->stored_blocks, Gt(0u));
}

// The tokens after a loaded part are computed from a multiple of 64 tokens on, where computing all
// tokens may be cut, too.
TEST_F(LlamaRestoreTest, APartlyStoredPrefixGivesTheComputedAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartStored());
  constexpr uint32_t kMissing = 5;  // 160 tokens are before it, which is no multiple of 64
  ASSERT_NO_FATAL_FAILURE(ClearBlock(*prompt_, kMissing));
  const auto result =
      RunPrompt(*prompt_, {.predict = kPredict, .mode = RestoreMode::kLoad, .store = false},
                engine_, cache_.get());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->hit_tokens, 128u);
  ExpectComputed(*result);
}

// Fewer than 64 tokens are never computed alone at the end of a prefix if computing all of the
// prefix would take more tokens in its last step.
TEST_F(LlamaRestoreTest, AnyMissingBlockOfAnyPrefixGivesTheComputedAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartStored());
  for (const uint32_t border : testing::SomeOf<uint32_t>({288, 352, 416}, 1)) {
    const auto prompt = std::span(*prompt_).first(border + 8);
    const auto run = [&](RestoreMode mode, double bytes_per_s) {
      TokenBucket link(bytes_per_s);
      const RunOptions options{.predict = kPredict,
                               .mode = mode,
                               .store = mode == RestoreMode::kCompute,
                               .profile = Believed(kToken_s, bytes_per_s),
                               .link = &link};
      auto result = RunPrompt(prompt, options, engine_, cache_.get());
      // A lookup has a deadline of some milliseconds, which a busy machine may miss.
      for (int i = 0; i < 3 && result.ok() && absl::IsDeadlineExceeded(result->cache_status); ++i)
        result = RunPrompt(prompt, options, engine_, cache_.get());
      return result;
    };
    const auto computed = run(RestoreMode::kCompute, 1e9);
    ASSERT_TRUE(computed.ok()) << computed.status();
    const uint32_t stored =
        PromptCache::RestorableTokens(prompt.size()) / PromptCache::kBlockTokens;
    for (uint32_t missing = stored; missing-- > 0 && missing + 3 > stored;) {
      ASSERT_NO_FATAL_FAILURE(ClearBlock(prompt, missing));
      for (const RestoreMode mode : {RestoreMode::kLoad, RestoreMode::kBoth, RestoreMode::kAuto}) {
        SCOPED_TRACE(
            absl::StrCat(ToString(mode), ", ", border, " tokens, without block ", missing));
        const auto result = run(mode, 40e6);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_TRUE(result->cache_status.ok()) << result->cache_status;
        EXPECT_THAT(result->hit_tokens, Gt(0u));
        EXPECT_EQ(result->answer, computed->answer);
        EXPECT_TRUE(result->first_logits == computed->first_logits);
      }
      const auto again = run(RestoreMode::kCompute, 1e9);
      ASSERT_TRUE(again.ok() && again->stored_blocks > 0) << again.status();
    }
    SCOPED_TRACE(absl::StrCat("a slow link, ", border, " tokens"));
    const auto slow = run(RestoreMode::kBoth, 3e6);
    ASSERT_TRUE(slow.ok()) << slow.status();
    EXPECT_TRUE(slow->first_logits == computed->first_logits);
    EXPECT_THAT(slow->restored->what.computed_tokens, Gt(0u));
  }
}

// The blocks that a short prompt stores equal those that a longer prompt with the same beginning
// computes.
TEST_F(LlamaRestoreTest, ALongerPromptUsesWhatAShorterOneStored) {
  for (const uint32_t tokens : testing::SomeOf<uint32_t>({288, 296, 320, 360, 424}, 2)) {
    SCOPED_TRACE(absl::StrCat(tokens, " tokens are stored"));
    ASSERT_NO_FATAL_FAILURE(Start());
    const auto stored =
        RunPrompt(std::span(*prompt_).first(tokens), {.predict = 1, .mode = RestoreMode::kCompute},
                  engine_, cache_.get());
    ASSERT_TRUE(stored.ok() && stored->cache_status.ok()) << stored.status();
    const uint32_t kept = PromptCache::RestorableTokens(tokens);
    EXPECT_EQ(stored->stored_blocks, kept / PromptCache::kBlockTokens);
    const auto longer = Run(RestoreMode::kLoad, 1e9);
    ASSERT_TRUE(longer.ok()) << longer.status();
    EXPECT_THAT(longer->hit_tokens, AllOf(Gt(0u), Le(kept)));
    ExpectComputed(*longer);
  }
}

TEST_F(LlamaRestoreTest, TheProgramExplainsErrors) {
  int code = -1;
  EXPECT_THAT(OutputOf(Program("--mode twice 2>&1"), &code), HasSubstr("--mode"));
  EXPECT_EQ(code, 2);
  EXPECT_THAT(OutputOf(Program("--link-rate fast 2>&1"), &code), HasSubstr("--link-rate"));
  EXPECT_EQ(code, 2);
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string profile = folder_->File("bad.toml");
  std::ofstream(profile) << "[engine]\nlayers = 4\nspeed = 3\n";
  EXPECT_THAT(OutputOf(Program(absl::StrCat("--mode auto --profile ", profile, " 2>&1")), &code),
              HasSubstr("bad.toml:3"));
  EXPECT_EQ(code, 1);
}

}  // namespace
}  // namespace larder::llama
