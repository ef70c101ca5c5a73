// The storm's verbs on device memory: the daemon asks the engine that has the blocks, and the model
// knows what the engine must answer.
#include <algorithm>
#include <chrono>
#include <span>

#include "absl/strings/str_cat.h"
#include "tests/e2e/storm/storm_controller.h"
#include "tests/e2e/storm/storm_device.h"

namespace larder::e2e {
namespace {

constexpr BlockStatus kOk = BlockStatus::kOk, kMissing = BlockStatus::kMissing;

}  // namespace

void StormController::StepOnDevice(StormChain& chain) {
  switch (Random(8)) {
    case 0:
    case 1:
      PinOnDevice(chain);
      break;
    case 2:
      UnpinOnDevice(chain);
      break;
    case 3:
      ClearOnDevice(chain);
      break;
    case 4:
      ClearScopeOnDevice(chain);
      break;
    case 5:
      CompressOnDevice(chain);
      break;
    default:
      world_.tally.Count(StormVerb::kLookup);
  }
  LookUpDevice(chain);
}

// Draws blocks of all engines or of the one that has them.
StormController::Target StormController::DrawOnDevice(StormChain& chain) {
  Target target = DrawBlocks(chain);
  target.blocks.engine_id = Random(2) == 0 ? DeviceEngineOf(chain) : "";
  return target;
}

bool StormController::Expect(const std::string& what, StormChain& chain, const Target& target,
                             std::span<const wire::BlockAnswer> answers,
                             std::span<const BlockStatus> expected) {
  if (world_.gate.stopping()) return false;  // the engines' sessions end, too
  std::string wrong;
  if (answers.size() != expected.size())
    absl::StrAppend(&wrong, " ", answers.size(), " answers for ", expected.size());
  for (size_t i = 0; i < std::min(answers.size(), expected.size()); ++i) {
    const size_t block = target.asked[i].block;
    if (answers[i].digest != chain.blocks[block].names.digest || answers[i].status != expected[i]) {
      absl::StrAppend(&wrong, " block ", block, ": ", ToString(answers[i].status), ", not ",
                      ToString(expected[i]));
    }
  }
  if (wrong.empty()) return true;
  world_.tally.Differs(absl::StrCat(what, " on device, chain ", chain.number, ":", wrong));
  return false;
}

void StormController::PinOnDevice(StormChain& chain) {
  world_.tally.Count(StormVerb::kPin);
  const Target target = DrawOnDevice(chain);
  const auto owner = static_cast<uint32_t>(Random(kOwners));
  const auto result = cache_->Pin(
      {.tenant = {}, .blocks = target.blocks, .owner = chain.Owner(owner), .tier = Tier::kDevice},
      kCallLimit);
  if (!world_.Answered(result.status(), "pin on device")) return;
  if (result->durable) world_.tally.Differs("a pin on device is durable");
  std::vector<BlockStatus> expected;
  for (const auto& one : target.asked) {
    auto& device = chain.blocks[one.block].device;
    expected.push_back(device.there ? kOk : kMissing);
    if (device.there) device.pins |= 1u << owner;
  }
  (void)Expect("pin", chain, target, result->blocks, expected);
}

void StormController::UnpinOnDevice(StormChain& chain) {
  world_.tally.Count(StormVerb::kUnpin);
  const Target target = DrawOnDevice(chain);
  const auto owner = static_cast<uint32_t>(Random(kOwners));
  const auto result = cache_->Unpin(
      {.tenant = {}, .blocks = target.blocks, .owner = chain.Owner(owner), .tier = Tier::kDevice},
      kCallLimit);
  if (!world_.Answered(result.status(), "unpin on device")) return;
  std::vector<BlockStatus> expected;
  for (const auto& one : target.asked) {
    auto& device = chain.blocks[one.block].device;
    expected.push_back((device.pins >> owner & 1) != 0 ? kOk : kMissing);
    device.pins &= ~(1u << owner);
  }
  const auto unpinned = static_cast<uint64_t>(std::ranges::count(expected, kOk));
  if (Expect("unpin", chain, target, result->blocks, expected) && result->unpinned != unpinned)
    world_.tally.Differs("unpin on device: wrong count");
}

void StormController::ClearOnDevice(StormChain& chain) {
  world_.tally.Count(StormVerb::kClear);
  const Target target = DrawOnDevice(chain);
  const bool pinned = Random(3) == 0, dry_run = Random(4) == 0;
  const auto result = cache_->Clear({.tenant = {},
                                     .scope = wire::SelectionScope::kBlocks,
                                     .blocks = target.blocks,
                                     .tiers = TierBit(Tier::kDevice),
                                     .pinned = pinned,
                                     .dry_run = dry_run},
                                    kCallLimit);
  if (!world_.Answered(result.status(), "clear on device")) return;
  uint64_t cleared = 0, kept = 0;
  std::vector<BlockStatus> expected;
  for (const auto& one : target.asked) {
    auto& device = chain.blocks[one.block].device;
    const bool keeps = device.pins != 0 && !pinned && !dry_run;
    expected.push_back(!device.there ? kMissing : keeps ? BlockStatus::kKept : kOk);
    cleared += expected.back() == kOk ? 1 : 0;
    kept += keeps ? 1 : 0;
    if (expected.back() == kOk && !dry_run) device = {};
  }
  if (Expect("clear", chain, target, result->blocks, expected) &&
      (result->device.blocks != cleared || result->kept_pinned != kept || result->unanswered != 0))
    world_.tally.Differs("clear on device: wrong counts");
}

// Clears a prefix or the content.  The block with which the prefix ends is cleared for certain, and
// so is each block after it up to a hole.  The daemon may or may not know that a block after a hole
// follows the prefix, so Lookup tells which of those were cleared.
void StormController::ClearScopeOnDevice(StormChain& chain) {
  world_.tally.Count(StormVerb::kClear);
  const size_t prefix = Random(kChainBlocks + 1);
  wire::ClearQuery query = {
      .tenant = {},
      .scope = prefix == 0 ? wire::SelectionScope::kContent : wire::SelectionScope::kPrefix,
      .blocks = {},
      .tiers = TierBit(Tier::kDevice),
      .pinned = Random(2) == 0};
  query.blocks.content = WithoutTenant(chain.content);
  query.blocks.tokens = chain.Tokens(prefix);
  const auto result = cache_->Clear(query, kCallLimit);
  if (!world_.Answered(result.status(), "clear of a scope on device")) return;
  const std::optional<std::vector<bool>> there = DeviceBlocksOf(chain);
  if (!there) return;
  uint64_t cleared = 0;
  bool unbroken = true;  // no hole since the prefix's last block, or the content's first
  std::string wrong;
  for (size_t i = 0; i < kChainBlocks; ++i) {
    auto& device = chain.blocks[i].device;
    const bool below = i + 1 >= prefix;
    if (below && i + 1 != prefix) unbroken = unbroken && device.there && device.linked;
    const bool gone = device.there && !(*there)[i];
    const bool kept = device.pins != 0 && !query.pinned;
    if (gone && (!below || kept)) absl::StrAppend(&wrong, " block ", i, " must stay");
    if (device.there && !gone && below && unbroken && !kept)
      absl::StrAppend(&wrong, " block ", i, " must be cleared");
    cleared += gone ? 1 : 0;
    if (gone) device = {};
  }
  if (result->device.blocks != cleared || result->unanswered != 0)
    absl::StrAppend(&wrong, " the answer counts ", result->device.blocks, ", not ", cleared);
  if (!wrong.empty() && !world_.gate.stopping())
    world_.tally.Differs(absl::StrCat("clear of ", prefix == 0 ? "the content" : "a prefix", " ",
                                      prefix, " on device, chain ", chain.number, ":", wrong));
}

void StormController::CompressOnDevice(StormChain& chain) {
  world_.tally.Count(StormVerb::kCompress);
  const Target target = DrawOnDevice(chain);
  const wire::CompressQuery query = {.tenant = {},
                                     .scope = wire::SelectionScope::kBlocks,
                                     .blocks = target.blocks,
                                     .tiers = TierBit(Tier::kDevice),
                                     .codec = Codec::kLossless};
  wire::CompressProgress last;
  const absl::Status status =
      cache_->Compress(query, kCallLimit, [&](const wire::CompressProgress& progress) {
        last = progress;
        return true;
      });
  if (!world_.Answered(status, "compress on device")) return;
  std::vector<BlockStatus> expected;
  for (const auto& one : target.asked)
    expected.push_back(chain.blocks[one.block].device.there ? kOk : kMissing);
  const auto there = static_cast<uint64_t>(std::ranges::count(expected, kOk));
  if (Expect("compress", chain, target, last.answers, expected) &&
      (last.blocks != there || last.blocks_done != there || last.changed != there))
    world_.tally.Differs("compress on device: wrong counts");
}

std::optional<std::vector<bool>> StormController::DeviceBlocksOf(StormChain& chain) {
  wire::LookupQuery query;
  query.content = WithoutTenant(chain.content);
  query.engine_id = DeviceEngineOf(chain);
  query.tokens = chain.Tokens(kChainBlocks);
  const auto found = cache_->Lookup(query, kCallLimit);
  if (!world_.Answered(found.status(), "lookup on device") || world_.gate.stopping())
    return std::nullopt;
  std::vector<bool> there(kChainBlocks, false);
  for (const wire::InstanceHit& instance : found->instances) {
    for (const wire::TierHit& tier : instance.tiers) {
      if (tier.tier != Tier::kDevice) continue;
      for (const TokenRange& range : tier.ranges) {
        for (uint32_t at = range.begin; at < range.end; at += kStepTokens)
          there[at / kStepTokens] = true;
      }
    }
  }
  return there;
}

void StormController::LookUpDevice(StormChain& chain) {
  const std::optional<std::vector<bool>> there = DeviceBlocksOf(chain);
  if (!there) return;
  for (size_t i = 0; i < kChainBlocks; ++i) {
    if ((*there)[i] != chain.blocks[i].device.there)
      world_.tally.Differs(absl::StrCat("lookup: chain ", chain.number, ", block ", i,
                                        (*there)[i] ? " is" : " is not", " on device"));
  }
}

}  // namespace larder::e2e
