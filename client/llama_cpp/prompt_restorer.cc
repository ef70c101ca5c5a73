#include "client/llama_cpp/prompt_restorer.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "client/llama_cpp/state_blob.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

// The part of the time left after decoding that a step may use, so that a step which takes up to a
// quarter longer than predicted still ends within the budget.
constexpr double kShareOfBudget = 0.8;

class PromptEngine final : public RestoreEngine {
 public:
  PromptEngine(std::span<const Token> prompt, Engine* engine, DecodeLoad* beside)
      : prompt_(prompt), engine_(engine), beside_(beside) {}

  absl::Status Compute(TokenRange tokens) override {
    return engine_->Decode(prompt_, tokens.begin, tokens.end);
  }
  absl::Status Place(TokenRange tokens, std::span<const Layers> blocks) override {
    StateJoiner joiner(engine_->shape(), tokens);
    TokenRange block{tokens.begin, tokens.begin};
    for (const Layers& layers : blocks) {
      block = {block.end, block.end + PromptCache::kBlockTokens};
      for (size_t layer = 0; layer < layers.size(); ++layer)
        joiner.PlaceSegment(layer, block, layers[layer]);
    }
    return engine_->AppendState(joiner.Finish(tokens.end - tokens.begin));
  }
  absl::StatusOr<bool> Between() override {
    if (beside_ == nullptr) return false;
    LARDER_RETURN_IF_ERROR(beside_->Step());
    return true;
  }

 private:
  const std::span<const Token> prompt_;
  Engine* const engine_;
  DecodeLoad* const beside_;
};

Restorer::Options OptionsOf(const PromptRestoreOptions& options) {
  Restorer::Options made;
  made.scheduler.falls_back = options.falls_back;
  if (TokenBucket* const link = options.link; link != nullptr) {
    made.carry = [link](ChannelId, ByteCount bytes, TimePoint now) {
      return link->Pass(bytes, now);
    };
  }
  if (options.beside != nullptr) {
    made.step_s_max =
        std::max(kShareOfBudget * (options.decode_budget_s - options.beside->step_s()), 0.0);
  }
  return made;
}

// The restore waits for an answer to Lookup for at most 3 % of the predicted time of computing the
// blocks, or 50 ms if that is more.
std::chrono::milliseconds LookupLimit(const Profile& profile, size_t tokens) {
  constexpr double kShare = 0.03, kLeast_s = 0.05;
  const double alone_s = profile.compute.Seconds({0, static_cast<uint32_t>(tokens)});
  return std::chrono::milliseconds(
      static_cast<int64_t>(1e3 * std::max(kLeast_s, kShare * alone_s)));
}

ChannelId ChannelOf(std::optional<Tier> tier) {
  if (!tier) return ChannelId::kNowhere;
  return *tier == Tier::kHost ? kPoolChannel : kDiskChannel;
}

}  // namespace

uint32_t PromptRestored::met_at_token() const {
  uint32_t met = 0;
  for (const Restorer::Span& span : what.spans) {
    if (span.channel == ChannelId::kNowhere) met = std::max(met, span.tokens.end);
  }
  return met;
}

absl::StatusOr<PromptRestored> RestorePrompt(std::span<const Token> prompt,
                                             const PromptRestoreOptions& options,
                                             PromptCache* cache, Engine* engine) {
  const std::span<const Token> covered = prompt.first(PromptCache::RestorableTokens(prompt.size()));
  if (options.beside != nullptr) options.beside->Restart();
  PromptRestored restored;
  absl::StatusOr<std::vector<std::optional<Tier>>> tiers =
      cache->Tiers(covered, LookupLimit(options.profile, covered.size()));
  restored.lookup = tiers.status();
  if (!tiers.ok()) tiers.emplace(covered.size() / PromptCache::kBlockTokens);
  const std::vector<Digest> digests = cache->BlockDigests(covered);
  std::vector<ByteCount> layer_bytes;
  for (size_t layer = 0; layer < engine->shape().layers(); ++layer)
    layer_bytes.push_back(engine->shape().SegmentBytes(layer, PromptCache::kBlockTokens));
  RestorePrefix prefix{.blocks = digests,
                       .layer_bytes = layer_bytes,
                       .chunk_tokens = Engine::kBatchTokens,
                       .cut_tokens = Engine::kCutTokens};
  for (const std::optional<Tier> tier : *tiers) prefix.channel_of_block.push_back(ChannelOf(tier));

  const auto hole = std::find(tiers->begin(), tiers->end(), std::nullopt);
  restored.stored_tokens = static_cast<uint32_t>(hole - tiers->begin()) * PromptCache::kBlockTokens;
  PromptEngine driven(prompt, engine, options.beside);
  Restorer restorer(cache->session(), cache->variant(), options.profile, OptionsOf(options));
  LARDER_ASSIGN_OR_RETURN(restored.what, restorer.Restore(prefix, driven));
  restored.learnt = restorer.Learnt();
  return restored;
}

}  // namespace larder::llama
