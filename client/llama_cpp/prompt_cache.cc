#include "client/llama_cpp/prompt_cache.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

TokenRange BlockTokens(uint32_t block) {
  return {block * PromptCache::kBlockTokens, (block + 1) * PromptCache::kBlockTokens};
}

ByteCount BlockBytes(const StateShape& shape) {
  ByteCount bytes;
  for (size_t layer = 0; layer < shape.layers(); ++layer) {
    bytes += shape.SegmentBytes(layer, PromptCache::kBlockTokens);
  }
  return bytes;
}

}  // namespace

PromptCache::PromptCache(const StateShape& shape)
    : shape_(shape),
      block_bytes_(BlockBytes(shape)),
      batch_(std::make_unique<std::byte[]>(kBatchBlocks * block_bytes_.value())) {
  std::byte* next = batch_.get();
  for (uint32_t block = 0; block < kBatchBlocks; ++block) {
    std::vector<std::span<std::byte>>& segments = segments_.emplace_back();
    for (size_t layer = 0; layer < shape_.layers(); ++layer) {
      const size_t bytes = shape_.SegmentBytes(layer, kBlockTokens).value();
      segments.emplace_back(next, bytes);
      next += bytes;
    }
    const_segments_.emplace_back(segments.begin(), segments.end());
  }
}

absl::StatusOr<std::unique_ptr<PromptCache>> PromptCache::Connect(const PromptCacheOptions& options,
                                                                  const StateShape& shape) {
  std::unique_ptr<PromptCache> cache(new PromptCache(shape));
  ClientOptions client_options;
  client_options.socket_dir = options.socket_dir;
  LARDER_ASSIGN_OR_RETURN(cache->client_, Client::Connect(client_options));
  LARDER_ASSIGN_OR_RETURN(cache->session_,
                          cache->client_->Attach({.engine_id = options.engine_id}));
  cache->engine_id_ = options.engine_id;

  ContentSpec& content = cache->content_;
  content.model = options.model;
  content.revision = options.revision;
  content.salt = options.salt;
  VariantSpec variant;
  variant.dtype = "f16";
  variant.layout = "llama.cpp/kv-rows/2";
  variant.block_tokens = kBlockTokens;
  variant.layers = static_cast<uint32_t>(shape.layers());
  LARDER_ASSIGN_OR_RETURN(
      std::vector<VariantHandle> handles,
      cache->session_->Register(std::span(&content, 1), std::span(&variant, 1)));
  LARDER_CHECK(handles.size() == 1);
  cache->variant_ = handles.front();
  cache->seed_ = cache->session_->Seed(content);
  return cache;
}

std::vector<Digest> PromptCache::BlockDigests(std::span<const Token> prompt) const {
  constexpr size_t kSteps = kBlockTokens / kStepTokens;
  const std::vector<Digest> chain =
      Chain(seed_, prompt.first(prompt.size() / kBlockTokens * kBlockTokens));
  std::vector<Digest> digests;
  digests.reserve(chain.size() / kSteps);
  for (size_t i = kSteps; i <= chain.size(); i += kSteps) digests.push_back(chain[i - 1]);
  return digests;
}

absl::StatusOr<std::vector<std::optional<Tier>>> PromptCache::Tiers(
    std::span<const Token> prompt, std::chrono::milliseconds limit) {
  std::vector<std::optional<Tier>> tiers(prompt.size() / kBlockTokens);
  wire::LookupQuery query;
  query.content = content_;
  query.tokens.assign(prompt.begin(),
                      prompt.begin() + static_cast<ptrdiff_t>(tiers.size() * kBlockTokens));
  query.engine_id = engine_id_;
  LARDER_ASSIGN_OR_RETURN(const wire::LookupResult found,
                          client_->Lookup(query, {.deadline = limit}));
  for (const wire::InstanceHit& instance : found.instances) {
    for (const wire::TierHit& hit : instance.tiers) {
      if (hit.tier != Tier::kHost && hit.tier != Tier::kDisk) continue;
      for (const TokenRange range : hit.ranges) {
        const uint32_t first = (range.begin + kBlockTokens - 1) / kBlockTokens;
        for (uint32_t b = first; b < range.end / kBlockTokens && b < tiers.size(); ++b)
          if (tiers[b] != Tier::kHost) tiers[b] = hit.tier;
      }
    }
  }
  return tiers;
}

PromptCache::Restored PromptCache::Restore(std::span<const Token> prompt, Engine* engine,
                                           TokenBucket* link) {
  Restored restored;
  const std::vector<Digest> digests = BlockDigests(prompt.first(RestorableTokens(prompt.size())));
  const uint32_t wanted = static_cast<uint32_t>(digests.size());
  if (wanted == 0) return restored;
  StateJoiner joiner(shape_, {0, wanted * kBlockTokens});
  uint32_t blocks = 0;
  while (blocks < wanted) {
    const uint32_t count = std::min(kBatchBlocks, wanted - blocks);
    const TimePoint asked = SteadyNow();
    const absl::StatusOr<uint32_t> got =
        FetchBatch(std::span(digests).subspan(blocks, count), blocks, &joiner);
    restored.status.Update(got.status());
    blocks += got.value_or(0);
    if (link != nullptr)
      std::this_thread::sleep_until(
          link->Pass(ByteCount(got.value_or(0) * block_bytes_.value()), asked));
    if (got.value_or(0) < count) break;
  }
  if (blocks < wanted) {
    blocks = Engine::CutBelow(blocks * kBlockTokens, wanted * kBlockTokens) / kBlockTokens;
  }
  if (blocks == 0) return restored;
  if (absl::Status s = engine->LoadState(joiner.Finish(blocks * kBlockTokens)); !s.ok()) {
    restored.status = s;
    return restored;
  }
  restored.tokens = blocks * kBlockTokens;
  restored.bytes = ByteCount(blocks * block_bytes_.value());
  return restored;
}

absl::StatusOr<uint32_t> PromptCache::FetchBatch(std::span<const Digest> digests, uint32_t first,
                                                 StateJoiner* joiner) {
  std::vector<GetBlock> wanted;
  for (size_t i = 0; i < digests.size(); ++i)
    wanted.push_back({.digest = digests[i], .segments = segments_[i]});
  LARDER_ASSIGN_OR_RETURN(const std::vector<BlockStatus> got, session_->Get(variant_, wanted));
  uint32_t count = 0;
  for (; count < got.size() && got[count] == BlockStatus::kOk; ++count) {
    for (size_t layer = 0; layer < shape_.layers(); ++layer) {
      joiner->PlaceSegment(layer, BlockTokens(first + count), segments_[count][layer]);
    }
  }
  return count;
}

absl::StatusOr<PromptCache::Stored> PromptCache::Store(std::span<const Token> prompt,
                                                       uint32_t known_tokens, Engine* engine) {
  Stored stored;
  const std::vector<Digest> digests = BlockDigests(prompt);
  const uint32_t blocks = RestorableTokens(prompt.size()) / kBlockTokens;
  uint32_t next = known_tokens / kBlockTokens;
  if (next >= blocks) return stored;
  LARDER_ASSIGN_OR_RETURN(const std::vector<std::byte> state, engine->SaveState());
  LARDER_ASSIGN_OR_RETURN(const StateView view, StateView::Parse(state));
  const TokenRange positions = view.positions();
  LARDER_CHECK(view.shape() == shape_ && positions.begin == 0 &&
               positions.end >= blocks * kBlockTokens);
  while (next < blocks) {
    const uint32_t last = std::min(blocks, next + kBatchBlocks);
    LARDER_RETURN_IF_ERROR(StoreBatch(prompt, digests, next, last, view, &stored));
    next = last;
  }
  return stored;
}

absl::Status PromptCache::StoreBatch(std::span<const Token> prompt, std::span<const Digest> digests,
                                     uint32_t first, uint32_t last, const StateView& state,
                                     Stored* stored) {
  std::vector<PutBlock> blocks;
  for (uint32_t i = first; i < last; ++i) {
    for (size_t layer = 0; layer < shape_.layers(); ++layer) {
      state.CopySegment(layer, BlockTokens(i), segments_[i - first][layer]);
    }
    blocks.push_back({.digest = digests[i],
                      .parent = i == 0 ? seed_ : digests[i - 1],
                      .tokens = prompt.subspan(BlockTokens(i).begin, kBlockTokens),
                      .segments = const_segments_[i - first]});
  }
  LARDER_ASSIGN_OR_RETURN(const std::vector<BlockStatus> put, session_->Put(variant_, blocks));
  for (const BlockStatus status : put) {
    if (status == BlockStatus::kOk) {
      ++stored->blocks;
      stored->bytes += block_bytes_;
    } else if (status == BlockStatus::kDuplicate) {
      ++stored->known;
    } else {
      ++stored->refused;
    }
  }
  return absl::OkStatus();
}

absl::Status PromptCache::Clear() {
  session_.reset();
  wire::ClearQuery query;
  query.scope = wire::SelectionScope::kContent;
  query.blocks.content = content_;
  return client_->Clear(query).status();
}

bool PromptCache::WaitDurable(uint32_t blocks, std::chrono::milliseconds limit) const {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(5);
  const auto until = SteadyNow() + limit;
  while (session_->counters().blocks_durable < blocks) {
    if (SteadyNow() >= until) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

}  // namespace larder::llama
