// A real model and one prompt, computed once, for tests of what a restore leaves in an engine.
//
// The model is loaded once per program.  Its engine has one context, which each run creates again.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <sys/wait.h>

#include "client/llama_cpp/run.h"
#include "gtest/gtest.h"

namespace larder::llama {

// Runs a shell command.  Returns its standard output, and its exit code in `code`.
inline std::string OutputOf(const std::string& command, int* code = nullptr) {
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  char part[4096];
  for (size_t n = 0; (n = fread(part, 1, sizeof part, pipe)) > 0;) output.append(part, n);
  const int status = pclose(pipe);
  if (code != nullptr) *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

inline const std::string& ModelPath() {
  static const std::string path = [] {
    std::string line = OutputOf(LARDER_SOURCE_DIR "/deploy/fetch-model.sh");
    return line.substr(0, line.find('\n'));
  }();
  return path;
}

class LlamaFixture : public ::testing::Test {
 protected:
  static constexpr uint32_t kPromptTokens = 600;  // two chunks and a quarter of one are restored
  static constexpr uint32_t kPredict = 8;

  static void SetUpTestSuite() {
    auto loaded = Engine::Load({.model_path = ModelPath(), .context_tokens = 4096, .threads = 1});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    engine_ = loaded->release();
    std::ifstream file(LARDER_SOURCE_DIR "/deploy/quickstart.txt");
    const auto tokens = engine_->Tokenize(std::string{std::istreambuf_iterator<char>(file), {}});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    ASSERT_GE(tokens->size(), kPromptTokens);
    prompt_ = new std::vector<Token>(tokens->begin(), tokens->begin() + kPromptTokens);
    const auto computed =
        RunPrompt(*prompt_, {.predict = kPredict, .mode = RestoreMode::kCompute, .store = false},
                  engine_, nullptr);
    ASSERT_TRUE(computed.ok()) << computed.status();
    computed_ = new RunResult(*computed);
    auto state = engine_->SaveState();
    ASSERT_TRUE(state.ok()) << state.status();
    computed_state_ = new std::vector<std::byte>(*std::move(state));
  }
  static void TearDownTestSuite() {
    delete computed_state_;
    delete computed_;
    delete prompt_;
    delete engine_;
  }

  // Connects to the larderd at `socket_dir`.
  static absl::StatusOr<std::unique_ptr<PromptCache>> ConnectCache(const std::string& socket_dir) {
    return PromptCache::Connect({.socket_dir = socket_dir, .model = "test", .revision = "test"},
                                engine_->shape());
  }
  // Stores those of the prompt's blocks that `cache` lacks, from the state that was computed once.
  static void StorePrompt(PromptCache* cache) {
    ASSERT_TRUE(engine_->ResetContext().ok());
    ASSERT_TRUE(engine_->LoadState(*computed_state_).ok());
    const auto stored = cache->Store(*prompt_, 0, engine_);
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_EQ(stored->blocks + stored->known, kPromptTokens / PromptCache::kBlockTokens);
  }
  // Returns a profile that says that a token takes `token_s` to compute and that each channel loads
  // `bytes_per_s`.
  static Profile Believed(double token_s, double bytes_per_s) {
    return {.model = "test",
            .layers = static_cast<uint16_t>(engine_->shape().layers()),
            .compute = {.fixed_s = 0.01, .linear_s = token_s},
            .channels = {{"pool", bytes_per_s}, {"disk", bytes_per_s}}};
  }
  // Expects the answer and the bits of the first logits to equal those of the computed run.
  static void ExpectComputed(const RunResult& result) {
    EXPECT_EQ(result.answer, computed_->answer);
    ASSERT_EQ(result.first_logits.size(), computed_->first_logits.size());
    EXPECT_EQ(std::memcmp(result.first_logits.data(), computed_->first_logits.data(),
                          result.first_logits.size() * sizeof(float)),
              0)
        << "the first logits differ from those of the computed run";
  }

  static inline Engine* engine_ = nullptr;
  static inline std::vector<Token>* prompt_ = nullptr;
  static inline RunResult* computed_ = nullptr;
  static inline std::vector<std::byte>* computed_state_ =
      nullptr;  // the engine's, after the computed run
};

}  // namespace larder::llama
