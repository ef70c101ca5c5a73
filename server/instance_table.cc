#include "server/instance_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/device_table.h"

namespace larder {
namespace {

constexpr size_t kEnginesMax = 4096;
constexpr size_t kContentsMax = 64;
constexpr size_t kVariantsMax = 1024;

// One variant's blocks along a chain.
struct Presence {
  uint32_t block_steps = 1;
  std::vector<BlockIndex::Presence> blocks;
};

bool IsIn(Tier tier, const BlockIndex::Presence& p) { return (p.tiers & TierBit(tier)) != 0; }

// Clears the steps that this variant does not have in the tier.
void Intersect(Tier tier, const Presence& presence, std::vector<char>* steps) {
  const size_t covered = presence.blocks.size() * presence.block_steps;
  std::fill(steps->begin() + static_cast<ptrdiff_t>(std::min(covered, steps->size())), steps->end(),
            0);
  for (size_t b = 0; b < presence.blocks.size(); ++b) {
    if (IsIn(tier, presence.blocks[b])) continue;
    const auto begin = steps->begin() + static_cast<ptrdiff_t>(b * presence.block_steps);
    std::fill(begin, begin + presence.block_steps, 0);
  }
}

std::vector<TokenRange> Ranges(const std::vector<char>& steps) {
  std::vector<TokenRange> ranges;
  for (uint32_t i = 0; i < steps.size(); ++i) {
    if (!steps[i]) continue;
    if (!ranges.empty() && ranges.back().end == i * kStepTokens) {
      ranges.back().end += kStepTokens;
    } else {
      ranges.push_back({i * kStepTokens, (i + 1) * kStepTokens});
    }
  }
  return ranges;
}

// Bytes of the blocks that lie wholly in steps that all variants have.
uint64_t BytesIn(const Presence& presence, const std::vector<char>& steps) {
  uint64_t pages = 0;
  const size_t blocks = std::min(presence.blocks.size(), steps.size() / presence.block_steps);
  for (size_t b = 0; b < blocks; ++b) {
    const auto begin = steps.begin() + static_cast<ptrdiff_t>(b * presence.block_steps);
    if (std::all_of(begin, begin + presence.block_steps, [](char s) { return s != 0; })) {
      pages += presence.blocks[b].pages;
    }
  }
  return pages * kPageBytes;
}

// Whatever the tier.
TokenCount MostContiguous(const wire::InstanceHit& hit) {
  TokenCount most;
  for (const wire::TierHit& tier : hit.tiers) most = std::max(most, tier.contiguous);
  return most;
}

TokenCount OnDevice(const wire::InstanceHit& hit) {
  const wire::TierHit& fastest = hit.tiers.front();
  return fastest.tier == Tier::kDevice ? fastest.contiguous : TokenCount();
}

}  // namespace

InstanceTable::InstanceTable(BlockStore& store, const Clock& clock, std::vector<TierRate> rates,
                             const DeviceTable* devices)
    : store_(store), clock_(clock), rates_(std::move(rates)), devices_(devices) {}

absl::StatusOr<std::vector<VariantIndex>> InstanceTable::Register(
    const std::string& engine_id, std::span<const ContentSpec> contents,
    std::span<const VariantSpec> variants) {
  for (const ContentSpec& content : contents) {
    if (absl::Status s = content.Validate(); !s.ok()) return s;
  }
  for (const VariantSpec& variant : variants) {
    if (absl::Status s = variant.Validate(); !s.ok()) return s;
  }
  bool changed = false;
  absl::StatusOr<std::shared_ptr<const Registration>> next =
      Extend(engine_id, contents, variants, &changed);
  if (!next.ok()) return next.status();
  std::vector<VariantIndex> indices;
  for (const VariantSpec& variant : variants) {
    const auto same = [&](const Variant& v) { return v.spec == variant; };
    indices.push_back(std::ranges::find_if((*next)->variants, same)->index);
  }
  if (changed && on_change_) on_change_(engine_id);
  return indices;
}

absl::StatusOr<std::shared_ptr<const InstanceTable::Registration>> InstanceTable::Extend(
    const std::string& engine_id, std::span<const ContentSpec> contents,
    std::span<const VariantSpec> variants, bool* changed) {
  MutexLock lock(mu_);
  if (absl::Status s = CheckRoom(engine_id); !s.ok()) return s;
  auto next = std::make_shared<Registration>(*engines_[engine_id].registration);
  for (const ContentSpec& content : contents) {
    if (std::find(next->contents.begin(), next->contents.end(), content) != next->contents.end())
      continue;
    next->contents.push_back(content);
    next->content_ids.push_back(content.Id());
  }
  for (const VariantSpec& variant : variants) {
    const auto same = [&](const Variant& v) { return v.spec == variant; };
    if (std::ranges::any_of(next->variants, same)) continue;
    next->variants.push_back({variant, VariantIndex::kNone});
  }
  if (next->contents.size() > kContentsMax || next->variants.size() > kVariantsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("engine '", engine_id, "': limit of ",
                                                     kContentsMax, " contents and ", kVariantsMax,
                                                     " variants"));
  }
  // Interned last: what is refused must not use up numbers, which are never given back.
  for (Variant& variant : next->variants) {
    if (variant.index != VariantIndex::kNone) continue;
    absl::StatusOr<VariantIndex> index = store_.RegisterVariant(variant.spec);
    if (!index.ok()) return index.status();
    variant.index = *index;
  }
  const Registration& before = *engines_[engine_id].registration;
  *changed = before.contents.size() != next->contents.size() ||
             before.variants.size() != next->variants.size();
  engines_[engine_id].registration = next;
  return next;
}

absl::Status InstanceTable::CheckRoom(const std::string& engine_id) const {
  if (engines_.size() < kEnginesMax || engines_.contains(engine_id)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("limit of ", kEnginesMax, " engines: clear what is not used"));
}

absl::Status InstanceTable::SessionBegan(const std::string& engine_id,
                                         const wire::InstanceSession& session) {
  MutexLock lock(mu_);
  if (absl::Status s = CheckRoom(engine_id); !s.ok()) return s;
  engines_[engine_id].sessions.push_back({session, clock_.Now()});
  return absl::OkStatus();
}

void InstanceTable::SessionEnded(const std::string& engine_id, SessionId session) {
  MutexLock lock(mu_);
  const auto it = engines_.find(engine_id);
  if (it == engines_.end()) return;
  std::erase_if(it->second.sessions,
                [&](const Live& live) { return live.session.session == session; });
}

std::vector<InstanceTable::Candidate> InstanceTable::Candidates(const Digest& content_id,
                                                                std::string_view engine_id) const {
  std::vector<Candidate> out;
  MutexLock lock(mu_);
  for (const auto& [id, engine] : engines_) {
    if (!engine_id.empty() && engine_id != id) continue;
    const auto& ids = engine.registration->content_ids;
    if (engine.registration->variants.empty()) continue;
    if (std::find(ids.begin(), ids.end(), content_id) == ids.end()) continue;
    out.push_back({id, !engine.sessions.empty(), engine.registration});
  }
  return out;
}

void InstanceTable::LookUp(Tier tier, const std::string& engine_id, VariantIndex variant,
                           std::span<const Digest> keys,
                           std::span<BlockIndex::Presence> blocks) const {
  if (tier != Tier::kDevice) return store_.index().Lookup(variant, keys, blocks);
  std::vector<char> there(keys.size());
  devices_->Lookup(engine_id, variant, keys, there);
  for (size_t b = 0; b < blocks.size(); ++b) blocks[b].tiers = there[b] ? TierBit(tier) : 0;
}

wire::TierHit InstanceTable::Hit(const TierRate& rate, const Candidate& candidate,
                                 std::span<const Digest> chain) const {
  std::vector<char> steps(chain.size(), 1);
  std::vector<Presence> all;
  all.reserve(candidate.registration->variants.size());
  std::vector<Digest> keys;
  for (const Variant& variant : candidate.registration->variants) {
    Presence presence;
    presence.block_steps = variant.spec.block_tokens / kStepTokens;
    const size_t blocks = chain.size() / presence.block_steps;
    presence.blocks.resize(blocks);
    if (presence.block_steps == 1) {
      LookUp(rate.tier, candidate.engine_id, variant.index, chain, presence.blocks);
    } else {
      keys.resize(blocks);
      for (size_t b = 0; b < blocks; ++b) keys[b] = chain[(b + 1) * presence.block_steps - 1];
      LookUp(rate.tier, candidate.engine_id, variant.index, keys, presence.blocks);
    }
    Intersect(rate.tier, presence, &steps);
    // What lies behind the last step that all have so far is of no use to the next ones.
    while (!steps.empty() && steps.back() == 0) steps.pop_back();
    if (steps.empty()) return {.tier = rate.tier, .contiguous = {}, .ranges = {}, .bytes = {}};
    chain = chain.first(steps.size());
    all.push_back(std::move(presence));
  }
  wire::TierHit hit;
  hit.tier = rate.tier;
  hit.ranges = Ranges(steps);
  if (!hit.ranges.empty() && hit.ranges.front().begin == 0)
    hit.contiguous = TokenCount(hit.ranges.front().end);
  for (const Presence& presence : all) hit.bytes += ByteCount(BytesIn(presence, steps));
  hit.load_s = static_cast<double>(hit.bytes.value()) / rate.bytes_per_s;
  return hit;
}

std::vector<wire::InstanceHit> InstanceTable::Lookup(const Digest& content_id,
                                                     std::span<const Digest> chain,
                                                     std::string_view engine_id) const {
  std::vector<wire::InstanceHit> hits;
  for (const Candidate& candidate : Candidates(content_id, engine_id)) {
    std::vector<wire::TierHit> tiers;
    for (const TierRate& rate : rates_) {
      if (rate.tier == Tier::kDevice &&
          (devices_->blocks() == 0 || !devices_->Has(candidate.engine_id)))
        continue;
      wire::TierHit hit = Hit(rate, candidate, chain);
      if (!hit.ranges.empty()) tiers.push_back(std::move(hit));
    }
    if (!tiers.empty()) hits.push_back({candidate.engine_id, candidate.attached, std::move(tiers)});
  }
  std::ranges::stable_sort(hits, std::greater(), [](const wire::InstanceHit& hit) {
    return std::pair(MostContiguous(hit), OnDevice(hit));
  });
  return hits;
}

wire::InstanceInfo InstanceTable::Describe(const std::string& engine_id,
                                           const Engine& engine) const {
  wire::InstanceInfo info;
  info.engine_id = engine_id;
  info.attached = !engine.sessions.empty();
  for (const Live& live : engine.sessions) {
    info.sessions.push_back(live.session);
    info.sessions.back().age_s = std::chrono::duration<double>(clock_.Now() - live.since).count();
  }
  info.contents = engine.registration->contents;
  for (const Variant& variant : engine.registration->variants) {
    info.variants.push_back(variant.spec);
    const BlockIndex::VariantTotals totals = store_.index().TotalsOf(variant.index);
    info.blocks += totals.blocks + totals.disk_only;
    info.bytes += totals.bytes;
  }
  return info;
}

std::vector<wire::InstanceInfo> InstanceTable::List() const {
  std::vector<wire::InstanceInfo> out;
  MutexLock lock(mu_);
  for (const auto& [id, engine] : engines_) out.push_back(Describe(id, engine));
  return out;
}

wire::InstanceInfo InstanceTable::Find(const std::string& engine_id) const {
  MutexLock lock(mu_);
  const auto it = engines_.find(engine_id);
  return it == engines_.end() ? wire::InstanceInfo{} : Describe(engine_id, it->second);
}

std::vector<VariantIndex> InstanceTable::VariantsOf(const std::string& engine_id) const {
  std::vector<VariantIndex> variants;
  {
    MutexLock lock(mu_);
    for (const auto& [id, engine] : engines_) {
      if (!engine_id.empty() && id != engine_id) continue;
      for (const Variant& variant : engine.registration->variants)
        variants.push_back(variant.index);
    }
  }
  std::sort(variants.begin(), variants.end());
  variants.erase(std::unique(variants.begin(), variants.end()), variants.end());
  return variants;
}

void InstanceTable::Collect() {
  std::vector<std::string> forgotten;
  {
    MutexLock lock(mu_);
    absl::erase_if(engines_, [&](const auto& entry) {
      const Engine& engine = entry.second;
      if (!engine.sessions.empty()) return false;
      const auto& variants = engine.registration->variants;
      const bool empty =
          std::all_of(variants.begin(), variants.end(), [this](const Variant& variant) {
            const BlockIndex::VariantTotals totals = store_.index().TotalsOf(variant.index);
            return totals.blocks + totals.disk_only == 0;
          });
      if (empty) forgotten.push_back(entry.first);
      return empty;
    });
  }
  if (!on_change_) return;
  for (const std::string& engine_id : forgotten) on_change_(engine_id);
}

}  // namespace larder
