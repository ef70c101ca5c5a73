#include "tests/e2e/storm/storm_controller.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/e2e/storm/storm_engine.h"

namespace larder::e2e {
namespace {

using Clock = std::chrono::steady_clock;
using wire::SelectionScope;
constexpr TierSet kBothTiers = TierBit(Tier::kHost) | TierBit(Tier::kDisk);

StormState CopiesOf(TierSet tiers) {
  return static_cast<StormState>(((tiers & TierBit(Tier::kHost)) != 0 ? kInHost : 0) |
                                 ((tiers & TierBit(Tier::kDisk)) != 0 ? kOnDisk : 0));
}

StormCounts SumsOf(const wire::ClearResult& r) {
  return {static_cast<int32_t>(r.host.blocks), static_cast<int32_t>(r.disk.blocks),
          static_cast<int32_t>(r.kept_pinned), static_cast<int32_t>(r.kept_in_use),
          static_cast<int32_t>(r.pins_ended)};
}
StormCounts SumsOf(const wire::MoveProgress& p) {
  return {static_cast<int32_t>(p.blocks),      static_cast<int32_t>(p.moved),
          static_cast<int32_t>(p.missing),     static_cast<int32_t>(p.no_room),
          static_cast<int32_t>(p.kept_pinned), static_cast<int32_t>(p.kept_in_use)};
}
StormCounts SumsOf(const wire::CompressProgress& p) {
  return {static_cast<int32_t>(p.blocks),      static_cast<int32_t>(p.changed),
          static_cast<int32_t>(p.unchanged),   static_cast<int32_t>(p.missing),
          static_cast<int32_t>(p.kept_in_use), static_cast<int32_t>(p.no_room)};
}

const char* Name(SelectionScope scope) {
  switch (scope) {
    case SelectionScope::kBlocks:
      return "blocks";
    case SelectionScope::kPrefix:
      return "prefix";
    case SelectionScope::kContent:
      return "content";
    case SelectionScope::kWriter:
      return "writer";
    case SelectionScope::kAll:
      break;
  }
  return "all";
}

}  // namespace

void StormController::Connect() {
  const RpcOptions control = {
      .socket_path = world_.daemon->control_socket(), .retry_budget = 0, .retries_max = 0};
  const RpcOptions admin = {
      .socket_path = world_.daemon->admin_socket(), .retry_budget = 0, .retries_max = 0};
  cache_ = std::make_unique<RpcStub>(control);
  admin_ = std::make_unique<AdminStub>(admin);
}

void StormController::Disconnect() {
  cache_.reset();
  admin_.reset();
}

void StormController::Run() {
  const auto park = [this](bool another) {
    if (another) Disconnect();
  };
  while (world_.gate.Pass(park)) {
    if (cache_ == nullptr) Connect();
    Step();
  }
  Disconnect();
}

void StormController::Step() {
  const uint64_t draw = Random(100);
  if (draw < 74) return StepOnChain();
  if (draw < 90) return StepOnOpen();
  StepOnNode();
}

void StormController::StepOnChain() {
  StormChains::Loan chain = world_.chains.Borrow(random_);
  if (Random(6) == 0) return StepOnDevice(*chain);
  const uint64_t draw = Random(100);
  // A verb that has to wait for a lease waits for a second.
  const bool may_wait = !chain->held() || Random(100) == 0;
  if (draw < 22) {
    StepOfLookup(*chain);
  } else if (draw < 36) {
    Pin(*chain);
  } else if (draw < 48) {
    Unpin(*chain);
  } else if (draw < 50) {
    UnpinAll(*chain);
  } else if (draw < 55) {
    Prefetch(*chain);
  } else if (draw < 73) {
    Clear(*chain);
  } else if (!may_wait) {
    StepOfLookup(*chain);
  } else if (draw < 87) {
    Move(*chain);
  } else {
    Compress(*chain);
  }
  if (Random(3) == 0) StepOfLookup(*chain);
}

void StormController::StepOfLookup(StormChain& chain) {
  world_.tally.Count(StormVerb::kLookup);
  (void)LookUp(chain);
}

bool StormController::LookUp(StormChain& chain) {
  wire::LookupQuery query;
  query.content = WithoutTenant(chain.content);
  query.engine_id = kStormEngineId;
  query.tokens = chain.Tokens(kChainBlocks);
  const auto found = cache_->Lookup(query, kCallLimit);
  if (!world_.Answered(found.status(), "lookup")) return false;
  std::vector<StormChain::Asked> asked;
  for (size_t i = 0; i < kChainBlocks; ++i) asked.push_back({.block = i, .answer = 0});
  for (const wire::InstanceHit& instance : found->instances) {
    for (const wire::TierHit& tier : instance.tiers) {
      for (const TokenRange& range : tier.ranges) {
        for (uint32_t at = range.begin; at < range.end; at += kStepTokens)
          *asked[at / kStepTokens].answer |= CopyBit(tier.tier);
      }
      const bool first = !tier.ranges.empty() && tier.ranges[0].begin == 0;
      if (tier.contiguous.value() != (first ? tier.ranges[0].end : 0))
        world_.tally.Differs("lookup: contiguous tokens are not the first range");
    }
  }
  const std::string wrong = chain.Settle("lookup", LookupLaw(), asked);
  if (!wrong.empty()) world_.tally.Differs(wrong);
  return wrong.empty();
}

bool StormController::LookAtCodecs(StormChain& chain) {
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    Target target;
    wire::CompressQuery query;
    query.scope = target.scope = SelectionScope::kContent;
    query.blocks.content = WithoutTenant(chain.content);
    target.asked = chain.Below(0);
    query.tiers = TierBit(tier);
    query.dry_run = true;
    wire::CompressProgress last;
    const absl::Status status =
        cache_->Compress(query, kCallLimit, [&](const wire::CompressProgress& progress) {
          last = progress;
          return true;
        });
    const uint64_t before = world_.tally.differences;
    Settle(chain, CompressLaw(CopyBit(tier), true, true), target, status, nullptr, SumsOf(last),
           absl::StrCat("a look at the codecs in ", ToString(tier)));
    if (world_.tally.differences != before) return false;
  }
  return true;
}

StormController::Target StormController::DrawBlocks(StormChain& chain) {
  Target target;
  if (Random(3) == 0) target.blocks.engine_id = kStormEngineId;
  if (Random(4) == 0) {
    const size_t count = 1 + Random(kChainBlocks);
    target.blocks.content = WithoutTenant(chain.content);
    target.blocks.tokens = chain.Tokens(count);
    for (size_t i = 0; i < count; ++i) target.asked.push_back({.block = i});
    return target;
  }
  const uint64_t which = 1 + Random((1 << kChainBlocks) - 1);
  for (size_t i = 0; i < kChainBlocks; ++i) {
    if ((which >> i & 1) == 0) continue;
    target.blocks.digests.push_back(chain.blocks[i].names.digest);
    target.asked.push_back({.block = i});
  }
  return target;
}

StormController::Target StormController::DrawScope(StormChain& chain) {
  const uint64_t draw = Random(4);
  if (draw > 1) return DrawBlocks(chain);
  Target target;
  const size_t prefix = draw == 0 ? 0 : 1 + Random(kChainBlocks);
  target.scope = prefix == 0 ? SelectionScope::kContent : SelectionScope::kPrefix;
  target.blocks.content = WithoutTenant(chain.content);
  target.blocks.tokens = chain.Tokens(prefix);
  target.asked = chain.Below(prefix);
  return target;
}

void StormController::Settle(StormChain& chain, const StormLaw& law, Target& target,
                             const absl::Status& status,
                             const std::vector<wire::BlockAnswer>* answers,
                             const std::optional<StormCounts>& sums, const std::string& what) {
  if (!world_.Answered(status, what)) return chain.SettleUnknown(what, law, target.asked);
  if (answers != nullptr) {
    if (answers->size() != target.asked.size())
      return world_.tally.Differs(absl::StrCat(what, ": ", answers->size(), " answers"));
    for (size_t i = 0; i < answers->size(); ++i) {
      if ((*answers)[i].digest != chain.blocks[target.asked[i].block].names.digest)
        world_.tally.Differs(what + ": an answer for another block");
      target.asked[i].answer = static_cast<int>((*answers)[i].status);
    }
  }
  const std::string wrong = chain.Settle(what, law, target.asked, sums);
  if (!wrong.empty()) world_.tally.Differs(wrong);
}

void StormController::Pin(StormChain& chain) {
  world_.tally.Count(StormVerb::kPin);
  Target target = DrawBlocks(chain);
  const auto owner = static_cast<uint32_t>(Random(kOwners));
  const Tier tier = DrawTier();
  const auto result = cache_->Pin(
      {.tenant = {}, .blocks = target.blocks, .owner = chain.Owner(owner), .tier = tier},
      kCallLimit);
  for (const auto& one : target.asked) chain.blocks[one.block].may_promote = true;
  if (result.ok() && !result->durable) world_.tally.Differs("a pin is not durable");
  Settle(chain, PinLaw(owner, tier), target, result.status(),
         result.ok() ? &result->blocks : nullptr, {}, absl::StrCat("pin in ", ToString(tier)));
}

void StormController::Unpin(StormChain& chain) {
  world_.tally.Count(StormVerb::kUnpin);
  Target target = DrawBlocks(chain);
  const auto owner = static_cast<uint32_t>(Random(kOwners));
  const Tier tier = DrawTier();
  for (const auto& one : target.asked) chain.blocks[one.block].may_promote = true;
  const auto result = cache_->Unpin(
      {.tenant = {}, .blocks = target.blocks, .owner = chain.Owner(owner), .tier = tier},
      kCallLimit);
  const bool ok = result.ok();
  Settle(chain, UnpinLaw(owner, tier), target, result.status(), ok ? &result->blocks : nullptr,
         ok ? std::optional(StormCounts{static_cast<int32_t>(result->unpinned)}) : std::nullopt,
         absl::StrCat("unpin in ", ToString(tier)));
}

void StormController::UnpinAll(StormChain& chain) {
  world_.tally.Count(StormVerb::kUnpin);
  Target target;
  for (size_t i = 0; i < kChainBlocks; ++i) {
    target.asked.push_back({.block = i});
    chain.blocks[i].may_promote = true;
  }
  const auto owner = static_cast<uint32_t>(Random(kOwners));
  const auto result = cache_->Unpin(
      {.tenant = {}, .blocks = std::nullopt, .owner = chain.Owner(owner)}, kCallLimit);
  const int32_t unpinned = result.ok() ? static_cast<int32_t>(result->unpinned) : 0;
  if (result.ok() && result->sessions_unanswered > 0 && !world_.gate.stopping())
    world_.tally.Differs("unpin all: an engine has not answered");
  Settle(chain, UnpinAllLaw(owner), target, result.status(), nullptr, StormCounts{unpinned},
         "unpin all");
  for (StormChain::Block& block : chain.blocks) block.device.pins &= ~(1u << owner);
}

void StormController::Prefetch(StormChain& chain) {
  world_.tally.Count(StormVerb::kPrefetch);
  Target target = DrawBlocks(chain);
  const std::chrono::milliseconds ttl{Random(2) == 0 ? 1 + Random(200) : 600'000};
  for (const auto& one : target.asked) {
    StormChain::Block& block = chain.blocks[one.block];
    block.may_promote = true;
    // The latest deadline of all prefetches, or this one if no earlier prefetch still pins the
    // block.
    const bool pinned = block.possible.Ever([](StormState s) { return (s & kPrefetched) != 0; });
    block.prefetch_end =
        std::max(pinned ? block.prefetch_end : Clock::time_point(), Clock::now() + ttl);
  }
  const auto result =
      cache_->Prefetch({.tenant = {}, .blocks = target.blocks, .ttl = ttl}, kCallLimit);
  Settle(chain, PrefetchLaw(), target, result.status(), result.ok() ? &*result : nullptr, {},
         "prefetch");
}

void StormController::Clear(StormChain& chain) {
  world_.tally.Count(StormVerb::kClear);
  Target target = DrawScope(chain);
  const TierSet tiers = Random(2) == 0 ? kBothTiers : TierBit(DrawTier());
  wire::ClearQuery query = {.tenant = {},
                            .scope = target.scope,
                            .blocks = target.blocks,
                            .tiers = tiers,
                            .pinned = Random(5) == 0,
                            .dry_run = Random(4) == 0};
  if (query.pinned) {
    for (const auto& one : target.asked) chain.blocks[one.block].may_promote = true;
  }
  const auto result = cache_->Clear(query, kCallLimit);
  if (result.ok() && !query.dry_run && !chain.pressure())
    world_.tally.cleared.Add(result->host.blocks + result->disk.blocks, result->kept_in_use);
  const bool answers = result.ok() && target.scope == SelectionScope::kBlocks;
  const StormClear clear = {CopiesOf(tiers), query.pinned, query.dry_run};
  Settle(chain, ClearLaw(clear), target, result.status(), answers ? &result->blocks : nullptr,
         result.ok() ? std::optional(SumsOf(*result)) : std::nullopt,
         absl::StrCat("clear (", Name(target.scope), ", tiers ", clear.copies,
                      query.pinned ? ", pinned" : "", query.dry_run ? ", dry run)" : ")"));
  if (!result.ok() || query.dry_run) return;
  for (StormChain::Block& block : chain.blocks) block.ghost = false;
}

void StormController::Move(StormChain& chain) {
  world_.tally.Count(StormVerb::kMove);
  Target target = DrawScope(chain);
  wire::MoveQuery query = {.tenant = {}, .scope = target.scope, .blocks = target.blocks};
  if (Random(2) == 0) std::swap(query.from, query.to);
  query.copy = Random(2) == 0;
  uint64_t answers = Random(5) == 0 ? Random(3) : UINT64_MAX;
  bool stopped = false;
  wire::MoveProgress last;
  const absl::Status status =
      cache_->Move(query, kCallLimit, [&](const wire::MoveProgress& progress) {
        last = progress;
        stopped = answers-- == 0;
        return !stopped;
      });
  if (status.ok() && !stopped && !chain.pressure())
    world_.tally.moved.Add(last.moved, last.kept_in_use);
  const StormLaw law = MoveLaw(query.from, query.to, query.copy);
  if (query.from == Tier::kDisk) {
    for (const auto& one : target.asked) chain.blocks[one.block].ghost = true;
  }
  const std::string what = absl::StrCat(query.copy ? "copy (" : "move (", Name(target.scope),
                                        ") to ", ToString(query.to));
  if (stopped && status.ok()) {
    ++world_.tally.cancelled;
    return chain.SettleUnknown(what, law, target.asked);
  }
  // The tier does not have enough capacity for all blocks, so nothing was done.
  if (chain.pressure() && absl::IsFailedPrecondition(status)) return;
  if (status.ok() && last.blocks_done != last.blocks)
    world_.tally.Differs("a move left blocks out");
  Settle(chain, law, target, status, nullptr, SumsOf(last), what);
}

void StormController::Compress(StormChain& chain) {
  world_.tally.Count(StormVerb::kCompress);
  Target target = DrawScope(chain);
  const TierSet tiers = Random(2) == 0 ? kBothTiers : TierBit(DrawTier());
  const bool encode = Random(3) != 0;
  wire::CompressQuery query = {.tenant = {},
                               .scope = target.scope,
                               .blocks = target.blocks,
                               .tiers = tiers,
                               .codec = encode ? Codec::kLossless : Codec::kIdentity,
                               .dry_run = Random(5) == 0};
  uint64_t answers = Random(8) == 0 ? Random(3) : UINT64_MAX;
  bool stopped = false;
  wire::CompressProgress last;
  const absl::Status status =
      cache_->Compress(query, kCallLimit, [&](const wire::CompressProgress& progress) {
        last = progress;
        stopped = answers-- == 0;
        return !stopped;
      });
  if (status.ok() && !stopped && !query.dry_run && !chain.pressure())
    world_.tally.recoded.Add(last.changed, last.kept_in_use);
  const StormLaw law = CompressLaw(CopiesOf(tiers), encode, query.dry_run);
  const std::string what =
      absl::StrCat(encode ? "encode (" : "decode (", Name(target.scope), ", tiers ",
                   CopiesOf(tiers), query.dry_run ? ", dry run)" : ")");
  if (stopped && status.ok()) {
    ++world_.tally.cancelled;
    return chain.SettleUnknown(what, law, target.asked);
  }
  for (const auto& one : target.asked) chain.blocks[one.block].recoded = true;
  const bool by_name = status.ok() && target.scope == SelectionScope::kBlocks;
  Settle(chain, law, target, status, by_name ? &last.answers : nullptr, SumsOf(last), what);
}

wire::BlockSelection StormController::DrawOpen(uint32_t first, uint32_t range) {
  wire::BlockSelection blocks;
  for (uint64_t i = 1 + Random(4); i > 0; --i)
    blocks.digests.push_back(OpenBlock(first + static_cast<uint32_t>(Random(range))).digest);
  return blocks;
}

void StormController::StepOnOpen() {
  const uint32_t numbers = world_.pressure ? kOpenStorm : kOpenCalm;
  switch (Random(8)) {
    case 0:
      return PinOpen();
    case 1:
      return UnpinOpen();
    case 2:
      return PrefetchOpen();
    case 3:
      return MoveOpen(numbers);
    case 4:
      return CompressOpen(numbers);
    case 5:
    case 6:
      return ClearOpen(numbers);
    default:
      return LookUpOpen(numbers);
  }
}

void StormController::PinOpen() {
  world_.tally.Count(StormVerb::kPin);
  const wire::PinQuery query = {
      .tenant = {}, .blocks = DrawOpen(0, 10), .owner = kOpenOwner, .tier = DrawTier()};
  (void)world_.Answered(cache_->Pin(query, kCallLimit).status(), "pin of open blocks");
}

void StormController::UnpinOpen() {
  world_.tally.Count(StormVerb::kUnpin);
  const wire::UnpinQuery query = {
      .tenant = {}, .blocks = DrawOpen(0, 10), .owner = kOpenOwner, .tier = DrawTier()};
  (void)world_.Answered(cache_->Unpin(query, kCallLimit).status(), "unpin of open blocks");
}

void StormController::PrefetchOpen() {
  world_.tally.Count(StormVerb::kPrefetch);
  const wire::PrefetchQuery query = {
      .tenant = {}, .blocks = DrawOpen(10, 10), .ttl = std::chrono::milliseconds(1 + Random(20))};
  (void)world_.Answered(cache_->Prefetch(query, kCallLimit).status(), "prefetch, open");
}

void StormController::MoveOpen(uint32_t numbers) {
  world_.tally.Count(StormVerb::kMove);
  wire::MoveQuery query = {
      .tenant = {}, .scope = SelectionScope::kBlocks, .blocks = DrawOpen(0, numbers)};
  if (Random(2) == 0) std::swap(query.from, query.to);
  query.copy = Random(2) == 0;
  const absl::Status status = cache_->Move(query, kCallLimit, [](const auto&) { return true; });
  if (!absl::IsFailedPrecondition(status)) (void)world_.Answered(status, "move, open");
}

void StormController::CompressOpen(uint32_t numbers) {
  world_.tally.Count(StormVerb::kCompress);
  const wire::CompressQuery query = {.tenant = {},
                                     .scope = SelectionScope::kBlocks,
                                     .blocks = DrawOpen(0, numbers),
                                     .tiers = kBothTiers,
                                     .codec = Random(2) == 0 ? Codec::kLossless : Codec::kIdentity};
  (void)world_.Answered(cache_->Compress(query, kCallLimit, [](const auto&) { return true; }),
                        "compress, open");
}

void StormController::ClearOpen(uint32_t numbers) {
  world_.tally.Count(StormVerb::kClear);
  wire::ClearQuery query = {.tenant = {},
                            .scope = SelectionScope::kBlocks,
                            .blocks = DrawOpen(0, numbers),
                            .tiers = Random(2) == 0 ? kBothTiers : TierBit(DrawTier()),
                            .pinned = Random(4) == 0};
  if (Random(40) == 0) {
    query.scope = SelectionScope::kContent;
    query.blocks = {};
    query.blocks.content = WithoutTenant(OpenContent());
  } else if (Random(20) == 0) {
    query.scope = SelectionScope::kAll;
    query.blocks = {};
    query.dry_run = true;
  }
  (void)world_.Answered(cache_->Clear(query, kCallLimit).status(), "clear, open");
}

void StormController::LookUpOpen(uint32_t numbers) {
  world_.tally.Count(StormVerb::kLookup);
  wire::LookupQuery query;
  query.content = WithoutTenant(OpenContent());
  query.tokens = OpenBlock(static_cast<uint32_t>(Random(numbers))).tokens;
  (void)world_.Answered(cache_->Lookup(query, kCallLimit).status(), "lookup, open");
}

void StormController::StepOnNode() {
  switch (Random(20)) {
    case 0:
      if (Random(2) == 0) Verify();
      return;
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 6: {
      world_.tally.Count(StormVerb::kInstances);
      const auto instances = cache_->ListInstances("", kCallLimit);
      if (!world_.Answered(instances.status(), "list instances")) return;
      const bool known = std::ranges::any_of(*instances, [](const wire::InstanceInfo& instance) {
        return instance.engine_id == kStormEngineId && instance.contents.size() == kChains + 1;
      });
      if (!known) world_.tally.Differs("list instances: the engine of all chains is not listed");
      return;
    }
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
    case 12: {
      world_.tally.Count(StormVerb::kStats);
      const auto stats = admin_->Stats(kCallLimit);
      if (!world_.Answered(stats.status(), "stats")) return;
      for (const wire::TenantStats& t : stats->tenants) {
        if (t.pool_stored + t.pool_free + t.pool_reserved > t.pool_limit)
          world_.tally.Differs("stats: the parts are larger than the pool");
      }
      return;
    }
    default:
      Watch();
  }
}

void StormController::Verify() {
  world_.tally.Count(StormVerb::kVerify);
  uint64_t answers = Random(2) == 0 ? 1 + Random(3) : UINT64_MAX;
  bool stopped = false;
  const absl::Status status =
      admin_->Verify({.tier = DrawTier()}, kCallLimit, [&](const wire::VerifyProgress& progress) {
        if (progress.damaged > 0) world_.tally.WrongBytes("verify found damage");
        if (progress.unread > 0) world_.tally.Differs("verify: a block was not read");
        stopped = --answers == 0;
        return !stopped;
      });
  if (!stopped) (void)world_.Answered(status, "verify");
}

// Watches for a moment and goes away; a later call resumes.
void StormController::Watch() {
  world_.tally.Count(StormVerb::kWatch);
  const bool resume = watcher_.complete && Random(4) != 0;
  uint64_t left = Random(5);
  const std::chrono::milliseconds patience{5 + Random(25)};
  if (!resume) watcher_ = {};
  std::string wrong;
  const absl::Status status =
      cache_->Watch(watcher_.Query(resume), patience, [&](const wire::WatchReply& reply) {
        wrong = watcher_.Hear(reply);
        return wrong.empty() && left-- > 0;
      });
  if (!wrong.empty()) world_.tally.Differs("watch: " + wrong);
  if (absl::IsOutOfRange(status)) watcher_ = {};
  if (absl::IsDeadlineExceeded(status) || absl::IsOutOfRange(status)) return;
  (void)world_.Answered(status, "watch");
}

void StormController::CatchUp() {
  StormWatcher now;
  const auto hear = [&](bool resume, StormWatcher* who, uint64_t until) {
    if (!resume) *who = {};
    const absl::Status status =
        cache_->Watch(who->Query(resume), kCallLimit, [&](const wire::WatchReply& reply) {
          const std::string wrong = who->Hear(reply);
          if (!wrong.empty()) world_.tally.Differs("watch: " + wrong);
          return wrong.empty() && !(who->complete && who->sequence >= until);
        });
    if (!status.ok()) *who = {};
  };
  hear(false, &now, 0);
  if (watcher_.complete && watcher_.boot_id == now.boot_id && watcher_.sequence < now.sequence)
    hear(true, &watcher_, now.sequence);
  if (!watcher_.complete || watcher_.boot_id != now.boot_id) hear(false, &watcher_, now.sequence);
}

}  // namespace larder::e2e
