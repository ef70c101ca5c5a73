#include "client/llama_cpp/engine.h"

#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

void LogErrorsOnly(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

// llama.cpp has one log and one set of backends per process, so a second call changes nothing.
void InitBackend() {
  llama_log_set(LogErrorsOnly, nullptr);
  llama_backend_init();
}

// Sequences of the text's context: the text, and one that AppendState loads a state into.
constexpr llama_seq_id kText = 0, kArriving = 1;
constexpr uint32_t kTextSequences = 2;

// A batch of llama.cpp with a capacity of `tokens` tokens.
class Batch {
 public:
  explicit Batch(int32_t tokens) : batch_(llama_batch_init(tokens, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Add(llama_seq_id sequence, Token token, uint32_t position, bool logits) {
    const int32_t i = batch_.n_tokens++;
    batch_.token[i] = static_cast<llama_token>(token);
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits ? 1 : 0;
  }
  [[nodiscard]] const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

llama_context_params ContextParams(const EngineOptions& options, uint32_t tokens,
                                   uint32_t sequences) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = tokens;
  params.n_batch = params.n_ubatch = Engine::kBatchTokens;
  params.n_seq_max = sequences;
  params.kv_unified = true;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(options.threads);
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  return params;
}

Token Likeliest(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

EngineOptions WithThreads(EngineOptions options) {
  if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
  return options;
}

}  // namespace

void Engine::FreeModel::operator()(llama_model* model) const { llama_model_free(model); }
void Engine::FreeContext::operator()(llama_context* context) const { llama_free(context); }

Engine::Engine(const EngineOptions& options) : options_(WithThreads(options)) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(options.model_path, error)) {
    return absl::NotFoundError(
        absl::StrCat("no model file ", options.model_path,
                     "; deploy/fetch-model.sh fetches one and prints its path"));
  }
  InitBackend();
  std::unique_ptr<Engine> engine(new Engine(options));
  llama_model_params params = llama_model_default_params();
  // Repacked weights crash on machines with AMX.
  params.use_extra_bufts = false;
  engine->model_.reset(llama_model_load_from_file(options.model_path.c_str(), params));
  if (engine->model_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("llama.cpp cannot load ", options.model_path));
  }
  LARDER_RETURN_IF_ERROR(engine->WarmUp());
  return engine;
}

absl::Status Engine::WarmUp() {
  LARDER_RETURN_IF_ERROR(ResetContext());
  const std::vector<Token> tokens(kBatchTokens, 0);
  LARDER_RETURN_IF_ERROR(Decode(tokens, 0, kBatchTokens));
  LARDER_ASSIGN_OR_RETURN(const std::vector<std::byte> state, SaveState());
  LARDER_ASSIGN_OR_RETURN(StateView view, StateView::Parse(state));
  shape_ = view.shape();
  Clear();
  return absl::OkStatus();
}

uint32_t Engine::CutBelow(uint32_t tokens, uint32_t prefix) {
  LARDER_CHECK(tokens < prefix);
  const uint32_t chunk = tokens - tokens % kBatchTokens;
  const uint32_t cuts = std::max((std::min(chunk + kBatchTokens, prefix) - chunk) / kCutTokens, 1u);
  return chunk + std::min((tokens - chunk) / kCutTokens, cuts - 1) * kCutTokens;
}

std::string Engine::ChatPrompt(const std::string& message) const {
  const char* form = llama_model_chat_template(model_.get(), nullptr);
  if (form == nullptr) return message;
  const llama_chat_message chat = {.role = "user", .content = message.c_str()};
  std::string prompt(message.size() + 1024, '\0');
  int32_t size = 0;
  // A second attempt has a buffer of the size that the first attempt returned.
  for (int attempt = 0; attempt < 2; ++attempt) {
    size = llama_chat_apply_template(form, &chat, 1, true, prompt.data(),
                                     static_cast<int32_t>(prompt.size()));
    if (size < 0) return message;  // llama.cpp does not know the template
    if (static_cast<size_t>(size) <= prompt.size()) break;
    prompt.resize(static_cast<size_t>(size));
  }
  prompt.resize(static_cast<size_t>(size));
  return prompt;
}

absl::StatusOr<std::vector<Token>> Engine::Tokenize(const std::string& text) const {
  // A token is usually at least one byte of the text; 8 more for tokens that the model adds.
  std::vector<llama_token> tokens(text.size() + 8);
  const int32_t count = llama_tokenize(llama_model_get_vocab(model_.get()), text.data(),
                                       static_cast<int32_t>(text.size()), tokens.data(),
                                       static_cast<int32_t>(tokens.size()), true, true);
  if (count < 0) return absl::InvalidArgumentError("llama.cpp cannot tokenize the text");
  return std::vector<Token>(tokens.begin(), tokens.begin() + count);
}

std::string Engine::Text(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    char piece[256];
    const int32_t size =
        llama_token_to_piece(llama_model_get_vocab(model_.get()), static_cast<llama_token>(token),
                             piece, sizeof piece, 0, false);
    if (size > 0) text.append(piece, static_cast<size_t>(size));
  }
  return text;
}

bool Engine::EndsAnswer(Token token) const {
  return llama_vocab_is_eog(llama_model_get_vocab(model_.get()), static_cast<llama_token>(token));
}

absl::Status Engine::ResetContext() {
  context_.reset();
  context_.reset(llama_init_from_model(
      model_.get(), ContextParams(options_, options_.context_tokens, kTextSequences)));
  if (context_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("llama.cpp cannot make a context of ", options_.context_tokens, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status Engine::Decode(std::span<const Token> prompt, uint32_t begin, uint32_t end) {
  LARDER_CHECK(begin < end && end <= prompt.size());
  if (end > options_.context_tokens) {
    return absl::OutOfRangeError(absl::StrCat("position ", end, " is beyond the context of ",
                                              options_.context_tokens, " tokens"));
  }
  while (begin < end) {
    const uint32_t next = std::min(end, (begin / kBatchTokens + 1) * kBatchTokens);
    Batch batch(static_cast<int32_t>(next - begin));
    for (uint32_t i = begin; i < next; ++i) batch.Add(kText, prompt[i], i, i + 1 == next);
    if (const int32_t code = llama_decode(context_.get(), batch.get()); code != 0) {
      return absl::InternalError(absl::StrCat("llama_decode returned ", code, " at token ", begin));
    }
    begin = next;
  }
  llama_synchronize(context_.get());
  return absl::OkStatus();
}

std::span<const float> Engine::LogitsOf(llama_context* context, int32_t index) const {
  const float* logits = llama_get_logits_ith(context, index);
  LARDER_CHECK(logits != nullptr);
  return {logits, static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())))};
}

Token Engine::Greedy() const { return Likeliest(Logits()); }

absl::Status Engine::ResetOthers() {
  if (others_ == nullptr) {
    others_.reset(llama_init_from_model(
        model_.get(), ContextParams(options_, kOthersMax * kOtherTokensMax, kOthersMax)));
  }
  if (others_ == nullptr)
    return absl::ResourceExhaustedError("llama.cpp cannot make a context for other sequences");
  llama_memory_clear(llama_get_memory(others_.get()), false);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Token>> Engine::DecodeOthers(std::span<const OtherToken> tokens) {
  LARDER_CHECK(others_ != nullptr && !tokens.empty() && tokens.size() <= kBatchTokens);
  Batch batch(static_cast<int32_t>(tokens.size()));
  for (const OtherToken& other : tokens) {
    LARDER_CHECK(other.sequence < kOthersMax && other.position < kOtherTokensMax);
    batch.Add(static_cast<llama_seq_id>(other.sequence), other.token, other.position, true);
  }
  if (const int32_t code = llama_decode(others_.get(), batch.get()); code != 0)
    return absl::InternalError(
        absl::StrCat("llama_decode returned ", code, " for the sequences beside the text"));
  llama_synchronize(others_.get());
  std::vector<Token> next;
  for (size_t i = 0; i < tokens.size(); ++i)
    next.push_back(Likeliest(LogitsOf(others_.get(), static_cast<int32_t>(i))));
  return next;
}

absl::StatusOr<std::vector<std::byte>> Engine::SaveState() {
  std::vector<std::byte> state(llama_state_seq_get_size(context_.get(), kText));
  const size_t size = llama_state_seq_get_data(
      context_.get(), reinterpret_cast<uint8_t*>(state.data()), state.size(), kText);
  if (size == 0 || size != state.size())
    return absl::InternalError("llama.cpp cannot save its state");
  return state;
}

absl::Status Engine::LoadState(std::span<const std::byte> state) {
  Clear();
  const size_t size = llama_state_seq_set_data(
      context_.get(), reinterpret_cast<const uint8_t*>(state.data()), state.size(), kText);
  if (size == state.size()) return absl::OkStatus();
  Clear();
  return absl::InternalError("llama.cpp refused the restored state");
}

absl::Status Engine::AppendState(std::span<const std::byte> state) {
  // llama.cpp replaces a whole sequence when it sets a state, so the state is set in an empty
  // sequence, which is then copied to the text.
  const llama_memory_t memory = llama_get_memory(context_.get());
  const size_t size = llama_state_seq_set_data(
      context_.get(), reinterpret_cast<const uint8_t*>(state.data()), state.size(), kArriving);
  const bool whole = size == state.size();
  if (whole) llama_memory_seq_cp(memory, kArriving, kText, -1, -1);
  llama_memory_seq_rm(memory, kArriving, -1, -1);
  if (whole) return absl::OkStatus();
  return absl::InternalError("llama.cpp refused a restored state that continues the text");
}

// Clears which tokens the cache holds, but not their bytes, which then have no effect.
void Engine::Clear() { llama_memory_clear(llama_get_memory(context_.get()), false); }

}  // namespace larder::llama
