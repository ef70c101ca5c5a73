#include "client/llama_cpp/measure_profile.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

constexpr uint32_t kChunks = 4;
constexpr uint32_t kSmallTokens = 32;
constexpr uint32_t kGets = 3;         // the fastest get counts, because the first one maps memory
constexpr double kDiskRateMax = 1e9;  // B/s, until restores have learnt the rate
constexpr double kMeasuredDoubt = 0.1;

double SecondsSince(TimePoint begin) {
  return std::chrono::duration<double>(SteadyNow() - begin).count();
}

double TokensOf(TokenRange range) { return range.end - range.begin; }
double MiddleOf(TokenRange range) { return (range.begin + range.end) / 2.0; }

absl::StatusOr<double> TimeDecode(std::span<const Token> text, TokenRange tokens, Engine* engine) {
  const TimePoint begin = SteadyNow();
  LARDER_RETURN_IF_ERROR(engine->Decode(text, tokens.begin, tokens.end));
  return SecondsSince(begin);
}

absl::StatusOr<ComputeCost> MeasureCompute(std::span<const Token> text, Engine* engine) {
  ChunkTimes times;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const TokenRange tokens{chunk * Engine::kBatchTokens, (chunk + 1) * Engine::kBatchTokens};
    LARDER_ASSIGN_OR_RETURN(const double took, TimeDecode(text, tokens, engine));
    times.later = tokens;
    times.later_s = took;
    if (chunk > 0) continue;
    times.first = tokens;
    times.first_s = took;
  }
  times.small = {times.later.end, times.later.end + kSmallTokens};
  LARDER_ASSIGN_OR_RETURN(times.small_s, TimeDecode(text, times.small, engine));
  return FitComputeCost(times);
}

absl::StatusOr<double> MeasurePool(std::span<const Token> text, PromptCache* cache,
                                   Engine* engine) {
  LARDER_RETURN_IF_ERROR(cache->Store(text, 0, engine).status());
  double best = 0;
  for (uint32_t i = 0; i < kGets; ++i) {
    const TimePoint begin = SteadyNow();
    const PromptCache::Restored restored = cache->Restore(text, engine);
    if (!restored.status.ok()) return restored.status;
    best = std::max(best, static_cast<double>(restored.bytes.value()) / SecondsSince(begin));
  }
  if (best > 0) return best;
  return absl::ResourceExhaustedError(
      "the daemon kept none of the blocks that were stored to measure its pool; start larderd with "
      "a larger --pool");
}

}  // namespace

ComputeCost FitComputeCost(const ChunkTimes& times) {
  ComputeCost cost;
  const double chunk = TokensOf(times.first), small = TokensOf(times.small);
  cost.quadratic_s = std::max(0.0, (times.later_s - times.first_s) /
                                       (chunk * (MiddleOf(times.later) - MiddleOf(times.first))));
  // The part that does not grow with the position: fixed + linear * tokens.
  const double later_s = times.later_s - cost.quadratic_s * chunk * MiddleOf(times.later);
  const double small_s =
      std::max(0.0, times.small_s - cost.quadratic_s * small * MiddleOf(times.small));
  cost.linear_s = std::clamp((later_s - small_s) / (chunk - small), 0.0, later_s / chunk);
  cost.fixed_s = std::max(0.0, later_s - cost.linear_s * chunk);
  return cost;
}

Profile BehindLink(Profile profile, double bytes_per_s) {
  for (ChannelCost& channel : profile.channels)
    channel.bytes_per_s = std::min(channel.bytes_per_s, bytes_per_s);
  return profile;
}

std::vector<Token> MeasuredText() {
  std::vector<Token> text(kChunks * Engine::kBatchTokens + kSmallTokens);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<Token>(5 + i % 97);
  return text;
}

absl::StatusOr<Profile> MeasureProfile(PromptCacheOptions options, Engine* engine) {
  const std::vector<Token> text = MeasuredText();
  if (engine->context_tokens() < text.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("measuring a profile takes a context of ", text.size(),
                     " tokens, and this engine has one of ", engine->context_tokens(),
                     "; measure once with a larger --context"));
  }
  options.salt = "larder-llama/profile";
  const std::string model = options.model;
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<PromptCache> cache,
                          PromptCache::Connect(options, engine->shape()));
  LARDER_RETURN_IF_ERROR(engine->ResetContext());
  LARDER_ASSIGN_OR_RETURN(const ComputeCost compute, MeasureCompute(text, engine));
  const absl::StatusOr<double> pool = MeasurePool(text, cache.get(), engine);
  (void)cache->Clear();  // if the daemon refuses, eviction removes the blocks later
  LARDER_RETURN_IF_ERROR(pool.status());
  LARDER_RETURN_IF_ERROR(engine->ResetContext());
  return Profile{.model = model,
                 .layers = static_cast<uint16_t>(engine->shape().layers()),
                 .compute = compute,
                 .channels = {{"pool", *pool}, {"disk", std::min(*pool, kDiskRateMax)}},
                 .doubt = kMeasuredDoubt};
}

}  // namespace larder::llama
