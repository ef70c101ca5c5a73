// A real model and one prompt, computed once, for tests of what a restore leaves in an engine.
//
// The model is loaded once a program; an engine has one context, which each run makes anew.
// Thread-safety: none.
#pragma once

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

// The standard output of a shell's command, and its exit code.
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
  static constexpr uint32_t kPromptTokens = 600;  // restored: two chunks and a quarter of one
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
  }
  static void TearDownTestSuite() {
    delete computed_;
    delete prompt_;
    delete engine_;
  }

  // Of a larderd on `socket_dir`.
  static absl::StatusOr<std::unique_ptr<PromptCache>> ConnectCache(const std::string& socket_dir) {
    return PromptCache::Connect({.socket_dir = socket_dir, .model = "test", .revision = "test"},
                                engine_->shape());
  }
  // Of who believes that computing takes so long, and loading so many bytes a second.
  static Profile Believed(double token_s, double bytes_per_s) {
    return {.model = "test",
            .layers = static_cast<uint16_t>(engine_->shape().layers()),
            .compute = {.fixed_s = 0.01, .linear_s = token_s},
            .channels = {{"pool", bytes_per_s}, {"disk", bytes_per_s}}};
  }
  // Answer and the bits of the first logits.
  static void ExpectComputed(const RunResult& result) {
    EXPECT_EQ(result.answer, computed_->answer);
    ASSERT_EQ(result.first_logits.size(), computed_->first_logits.size());
    EXPECT_EQ(std::memcmp(result.first_logits.data(), computed_->first_logits.data(),
                          result.first_logits.size() * sizeof(float)),
              0)
        << "answers are equal, their probabilities are not";
  }

  static inline Engine* engine_ = nullptr;
  static inline std::vector<Token>* prompt_ = nullptr;
  static inline RunResult* computed_ = nullptr;
};

}  // namespace larder::llama
