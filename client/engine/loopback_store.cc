#include "client/engine/loopback_store.h"

#include <cstring>
#include <utility>

#include "cuda/paged_plan.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

std::byte* At(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

class LoopbackStore::Answer final : public Question {
 public:
  Answer(std::shared_ptr<const LoopbackBlocks> blocks, TokenCount tokens, size_t found)
      : blocks_(std::move(blocks)), tokens_(tokens), found_(found) {}
  [[nodiscard]] bool Poll() override { return blocks_->weather().answers; }
  [[nodiscard]] TokenCount tokens() const override { return tokens_; }
  [[nodiscard]] LeaseId promise() const override { return {}; }
  [[nodiscard]] size_t pending() const override { return 0; }
  [[nodiscard]] std::vector<Tier> tiers() const override {
    return std::vector<Tier>(found_, Tier::kHost);
  }
  void GiveUp() override {}

 private:
  const std::shared_ptr<const LoopbackBlocks> blocks_;
  const TokenCount tokens_;
  const size_t found_;  // blocks
};

class LoopbackStore::Copies final : public Mover {
 public:
  explicit Copies(LoopbackStore& store) : store_(store) {}
  [[nodiscard]] Moved Load(std::span<const PagedGet> blocks, LeaseId, std::chrono::milliseconds,
                           const std::stop_token& stop, PageWrites* writes) override {
    std::vector<BlockStatus> status(blocks.size(), BlockStatus::kCancelled);
    for (size_t i = 0; i < blocks.size() && !stop.stop_requested(); ++i) {
      std::optional<std::vector<std::byte>> payload;
      if (store_.blocks_->weather().serves) payload = store_.blocks_->Get(blocks[i].digest);
      if (payload && writes != nullptr && !writes->Begin(i)) continue;
      status[i] = payload ? Move(*payload, blocks[i].pages, blocks[i].first_slot, /*load=*/true)
                          : BlockStatus::kMissing;
    }
    return {std::move(status)};
  }
  [[nodiscard]] Moved LoadLayers(std::span<const PagedGet> blocks, LeaseId,
                                 std::chrono::milliseconds, const std::stop_token& stop,
                                 LayerArrivals& arrivals) override {
    std::vector<BlockStatus> status(blocks.size(), BlockStatus::kCancelled);
    std::vector<std::vector<std::byte>> payloads;
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::optional<std::vector<std::byte>> payload;
      if (store_.blocks_->weather().serves) payload = store_.blocks_->Get(blocks[i].digest);
      if (!payload) {
        status[i] = BlockStatus::kMissing;
        return {std::move(status)};
      }
      payloads.push_back(*std::move(payload));
    }
    for (uint32_t layer = 0; layer < store_.plan_->layers(); ++layer) {
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (Move(payloads[i], blocks[i].pages, blocks[i].first_slot, /*load=*/true, {layer, 1}) !=
            BlockStatus::kOk) {
          status[i] = BlockStatus::kInvalid;
          return {std::move(status)};
        }
      }
      if (stop.stop_requested() || !arrivals.Arrived(layer + 1)) return {std::move(status)};
    }
    return {std::vector<BlockStatus>(blocks.size(), BlockStatus::kOk)};
  }
  [[nodiscard]] Moved Store(std::span<const PagedPut> blocks, const ContentSpec&,
                            std::chrono::milliseconds, const std::stop_token& stop,
                            PageReads* reads) override {
    std::vector<BlockStatus> status(blocks.size(), BlockStatus::kCancelled);
    for (size_t i = 0; i < blocks.size() && !stop.stop_requested(); ++i) {
      std::vector<std::byte> payload(store_.payload_bytes_);
      if (reads != nullptr && !reads->Begin()) break;
      status[i] = Move(payload, blocks[i].pages, blocks[i].first_slot, /*load=*/false);
      if (reads != nullptr) reads->End();
      if (status[i] != BlockStatus::kOk) continue;
      const LoopbackBlocks::Weather weather = store_.blocks_->weather();
      if (!weather.serves || !weather.keeps) {
        status[i] = BlockStatus::kFull;
      } else if (!store_.blocks_->Add(blocks[i].digest, std::move(payload))) {
        status[i] = BlockStatus::kDuplicate;
      }
    }
    return {std::move(status)};
  }

 private:
  [[nodiscard]] BlockStatus Move(std::span<std::byte> payload, std::span<const uint32_t> pages,
                                 uint32_t first_slot, bool load) const {
    return Move(payload, pages, first_slot, load, {0, store_.plan_->layers()});
  }
  [[nodiscard]] BlockStatus Move(std::span<std::byte> payload, std::span<const uint32_t> pages,
                                 uint32_t first_slot, bool load, LayerRange layers) const {
    const PagedBlock block{
        reinterpret_cast<uint64_t>(payload.data()) + store_.plan_->PayloadBegin(layers).value(),
        pages, first_slot};
    if (!store_.plan_->Check(layers, {&block, 1}).ok()) return BlockStatus::kInvalid;
    for (const RunCopy& run : RunsOf(*store_.plan_, layers, {&block, 1})) {
      std::memcpy(At(load ? run.engine : run.payload), At(load ? run.payload : run.engine),
                  run.bytes);
    }
    return BlockStatus::kOk;
  }

  LoopbackStore& store_;
};

// ---- LoopbackBlocks

void LoopbackBlocks::Set(const Weather& weather) {
  MutexLock lock(mu_);
  weather_ = weather;
}

LoopbackBlocks::Weather LoopbackBlocks::weather() const {
  MutexLock lock(mu_);
  return weather_;
}

bool LoopbackBlocks::Add(const Digest& digest, std::vector<std::byte> payload) {
  MutexLock lock(mu_);
  return payloads_.emplace(digest, std::move(payload)).second;
}

std::optional<std::vector<std::byte>> LoopbackBlocks::Get(const Digest& digest) const {
  MutexLock lock(mu_);
  const auto found = payloads_.find(digest);
  return found == payloads_.end() ? std::nullopt : std::optional(found->second);
}

bool LoopbackBlocks::Has(const Digest& digest) const {
  MutexLock lock(mu_);
  return payloads_.contains(digest);
}

bool LoopbackBlocks::Drop(const Digest& digest) {
  MutexLock lock(mu_);
  return payloads_.erase(digest) > 0;
}

size_t LoopbackBlocks::size() const {
  MutexLock lock(mu_);
  return payloads_.size();
}

// ---- LoopbackStore

LoopbackStore::LoopbackStore(std::unique_ptr<const PagedPlan> plan, const PayloadLayout& payload,
                             std::shared_ptr<LoopbackBlocks> blocks)
    : plan_(std::move(plan)),
      block_tokens_(payload.block_tokens),
      payload_bytes_(payload.table.PayloadBytes().value()),
      blocks_(std::move(blocks)) {}

LoopbackStore::~LoopbackStore() = default;

absl::StatusOr<std::unique_ptr<LoopbackStore>> LoopbackStore::Make(
    Device& device, const PagedLayout& engine, const PayloadLayout& payload,
    std::shared_ptr<LoopbackBlocks> blocks) {
  if (device.info().kind != DeviceKind::kHost)
    return absl::UnimplementedError("a loopback store moves pages of host memory only");
  LARDER_ASSIGN_OR_RETURN(PagedPlan plan, PagedPlan::Make(engine, payload));
  return std::unique_ptr<LoopbackStore>(new LoopbackStore(
      std::make_unique<const PagedPlan>(std::move(plan)), payload, std::move(blocks)));
}

absl::Status LoopbackStore::status() const {
  return blocks_->weather().serves ? absl::OkStatus() : absl::UnavailableError("not now");
}

std::unique_ptr<PageStore::Question> LoopbackStore::Ask(std::span<const Digest> steps,
                                                        TokenCount first_token) {
  if (!blocks_->weather().serves) return nullptr;
  steps = steps.first(std::min<size_t>(steps.size(), kLookupTokensMax.value() / kStepTokens));
  const size_t block_steps = block_tokens_ / kStepTokens;
  size_t end = 0;
  while (end + block_steps <= steps.size() && blocks_->Has(steps[end + block_steps - 1]))
    end += block_steps;
  const TokenCount tokens(end * kStepTokens);
  if (tokens <= first_token) return std::make_unique<Answer>(blocks_, TokenCount(), 0);
  return std::make_unique<Answer>(blocks_, tokens, end / block_steps);
}

std::optional<Digest> LoopbackStore::Seed(ContentSpec content) const {
  content.tenant = "loopback";
  return content.Id();
}

absl::StatusOr<std::unique_ptr<PageStore::Mover>> LoopbackStore::MakeMover() {
  return std::make_unique<Copies>(*this);
}

}  // namespace larder
