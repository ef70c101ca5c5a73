#include "server/instances/instance_table.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/instances/device_table.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr size_t kEnginesMax = 4096;
constexpr size_t kContentsMax = 64;
constexpr size_t kVariantsMax = 1024;
// The most engines of one user that a Lookup answers for.  A user may register the content and
// variants of other users' engines under thousands of ids; without this limit each Lookup of that
// content would look up blocks for all of them.
constexpr size_t kCandidatesPerUser = 64;
constexpr size_t kRegistrationBytesMax = KiB(128).value();  // in memory, and as many on disk

// Returns the bytes of a registration's strings and numbers.
template <class Contents, class Variants>
size_t BytesOf(const Contents& contents, const Variants& variants) {
  constexpr size_t kNumbers = 32;
  size_t bytes = kNumbers * std::size(contents);
  for (const ContentSpec& content : contents) {
    for (const std::string* part : {&content.tenant, &content.model, &content.revision,
                                    &content.salt, &content.lora, &content.multimodal})
      bytes += part->size();
  }
  for (const auto& variant : variants)
    bytes += kNumbers + variant.spec.dtype.size() + variant.spec.layout.size() +
             variant.spec.group.size();
  return bytes;
}

bool IsIn(Tier tier, const BlockIndex::Presence& p) { return (p.tiers & TierBit(tier)) != 0; }

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

// Returns the most contiguous tokens, from the first token on, that the instance has in one of its
// tiers.
TokenCount MostContiguous(const wire::InstanceHit& hit) {
  TokenCount most;
  for (const wire::TierHit& tier : hit.tiers) most = std::max(most, tier.contiguous);
  return most;
}

TokenCount OnDevice(const wire::InstanceHit& hit) {
  const wire::TierHit& fastest = hit.tiers.front();
  return fastest.tier == Tier::kDevice ? fastest.contiguous : TokenCount();
}

// Returns about how many bytes `info` takes in a message.
size_t Weight(const wire::InstanceInfo& info) {
  constexpr size_t kEach = 96;  // for the numbers and tags of one part
  size_t bytes = info.engine_id.size() +
                 kEach * (1 + info.sessions.size() + info.contents.size() + info.variants.size());
  for (const wire::InstanceSession& session : info.sessions) {
    bytes += session.peer.size() + session.device.kind.size() + session.device.reason.size();
  }
  for (const ContentSpec& c : info.contents) {
    bytes += c.tenant.size() + c.model.size() + c.revision.size() + c.salt.size() + c.lora.size() +
             c.multimodal.size();
  }
  for (const VariantSpec& v : info.variants) {
    bytes += v.dtype.size() + v.layout.size() + v.group.size();
  }
  return bytes;
}

}  // namespace

InstanceTable::InstanceTable(BlockStore& store, const Clock& clock, std::vector<TierRate> rates,
                             const DeviceTable* devices)
    : store_(store), clock_(clock), rates_(std::move(rates)), devices_(devices) {}

bool InstanceTable::Said::IsIn(const Registration& registration) const {
  const auto has_content = [&](const Digest& id) {
    return std::ranges::find(registration.content_ids, id) != registration.content_ids.end();
  };
  return std::ranges::all_of(content_ids, has_content) &&
         std::ranges::all_of(variant_ids,
                             [&](const Digest& id) { return registration.numbers.contains(id); });
}

absl::StatusOr<std::vector<VariantIndex>> InstanceTable::Register(
    const std::string& engine_id, std::span<const ContentSpec> contents,
    std::span<const VariantSpec> variants, const Shares::Account* who) {
  Said said{.contents = contents, .variants = variants, .content_ids = {}, .variant_ids = {}};
  for (const ContentSpec& content : contents) {
    LARDER_RETURN_IF_ERROR(content.Validate());
    said.content_ids.push_back(content.Id());
  }
  for (const VariantSpec& variant : variants) {
    LARDER_RETURN_IF_ERROR(variant.Validate());
    said.variant_ids.push_back(variant.Id());
  }
  LARDER_ASSIGN_OR_RETURN(const Extended next, Extend(engine_id, said, who));
  std::vector<VariantIndex> indices;
  for (const Digest& id : said.variant_ids) {
    indices.push_back(next.registration->numbers.at(id));
  }
  if (next.changed && on_change_) on_change_(engine_id);
  if (next.owner) TellOfOther(engine_id, {who->holder().uid}, *next.owner);
  return indices;
}

absl::StatusOr<std::shared_ptr<InstanceTable::Registration>> InstanceTable::With(
    const std::string& engine_id, const Registration& before, const Said& said) {
  auto next = std::make_shared<Registration>(before);
  for (size_t i = 0; i < said.contents.size(); ++i) {
    const Digest& id = said.content_ids[i];
    if (std::ranges::find(next->content_ids, id) != next->content_ids.end()) continue;
    next->contents.push_back(said.contents[i]);
    next->content_ids.push_back(id);
  }
  for (size_t i = 0; i < said.variants.size(); ++i) {
    if (!next->numbers.try_emplace(said.variant_ids[i], VariantIndex::kNone).second) continue;
    next->variants.push_back({said.variants[i], VariantIndex::kNone});
  }
  if (next->contents.size() > kContentsMax || next->variants.size() > kVariantsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("engine '", engine_id, "': its registrations would exceed the limit of ",
                     kContentsMax, " contents and ", kVariantsMax, " variants per engine"));
  }
  const bool more = next->contents.size() > before.contents.size() ||
                    next->variants.size() > before.variants.size();
  if (more && BytesOf(next->contents, next->variants) > kRegistrationBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("engine '", engine_id, "': its contents and variants take more than ",
                     kRegistrationBytesMax, " bytes; give them shorter names"));
  }
  return next;
}

absl::StatusOr<InstanceTable::Extended> InstanceTable::Extend(const std::string& engine_id,
                                                              const Said& said,
                                                              const Shares::Account* who) {
  MutexLock lock(mu_);
  LARDER_ASSIGN_OR_RETURN(Engine* const entered, Enter(engine_id, who));
  Engine& engine = *entered;
  Part* const part = PartOf(engine, who);
  const Registration none;
  const Registration& before = part == nullptr ? none : *part->registration;
  // A Register that adds nothing must copy nothing, because a message may have many.
  if (part != nullptr && said.IsIn(before)) {
    return Extended{.registration = part->registration, .changed = false, .owner = {}};
  }
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<Registration> next, With(engine_id, before, said));
  Extended extended{.registration = next, .changed = false, .owner = {}};
  if (part != &engine.own) extended.owner = engine.owner;
  const size_t new_contents = next->contents.size() - before.contents.size();
  const size_t new_variants = next->variants.size() - before.variants.size();
  if (new_contents + new_variants == 0) {
    extended.owner.reset();
    return extended;
  }
  Shares::Answer of_contents, of_variants, of_bytes;
  if (who != nullptr && part != nullptr) {
    const size_t new_bytes =
        BytesOf(next->contents, next->variants) - BytesOf(before.contents, before.variants);
    of_contents = who->OfUid().Take(ShareKind::kContents, new_contents);
    of_variants = who->OfUid().Take(ShareKind::kVariants, new_variants);
    of_bytes = who->OfUid().Take(ShareKind::kRegistrationBytes, new_bytes);
    for (const Shares::Answer* const answer : {&of_contents, &of_variants, &of_bytes}) {
      if (!answer->admitted()) return absl::ResourceExhaustedError(answer->why);
    }
  }
  // Variants get their numbers last: a refused registration must not use up numbers, which are
  // never released.
  LARDER_RETURN_IF_ERROR(Intern(*next, who));
  if (part == nullptr) return extended;
  part->registration = next;
  part->charged.push_back(std::move(of_contents.ticket));
  part->charged.push_back(std::move(of_variants.ticket));
  part->charged.push_back(std::move(of_bytes.ticket));
  extended.changed = part == &engine.own;
  if (extended.changed) engine.former = Part();
  return extended;
}

absl::Status InstanceTable::Intern(Registration& registration, const Shares::Account* who) {
  // A number is never released, so the share must allow all new numbers before one is given.
  if (who != nullptr) {
    absl::flat_hash_set<Digest> unknown;
    for (const Variant& variant : registration.variants) {
      if (variant.index == VariantIndex::kNone && !store_.index().FindVariant(variant.spec.Id()))
        unknown.insert(variant.spec.Id());
    }
    const Shares::Answer all = who->OfUid().Take(ShareKind::kNumbers, unknown.size());
    if (!all.admitted()) return absl::ResourceExhaustedError(all.why);
  }
  for (Variant& variant : registration.variants) {
    if (variant.index != VariantIndex::kNone) continue;
    LARDER_ASSIGN_OR_RETURN(VariantIndex index, NumberLocked(variant.spec, who));
    variant.index = index;
    registration.numbers[variant.spec.Id()] = index;
  }
  return absl::OkStatus();
}

absl::StatusOr<VariantIndex> InstanceTable::Number(const VariantSpec& variant,
                                                   const Shares::Account* who) {
  MutexLock lock(mu_);
  return NumberLocked(variant, who);
}

absl::StatusOr<VariantIndex> InstanceTable::NumberLocked(const VariantSpec& variant,
                                                         const Shares::Account* who) {
  Shares::Answer number;
  if (who != nullptr && !store_.index().FindVariant(variant.Id())) {
    number = who->OfUid().Take(ShareKind::kNumbers);
    if (!number.admitted()) return absl::ResourceExhaustedError(number.why);
  }
  const absl::StatusOr<VariantIndex> index = store_.RegisterVariant(variant);
  // The charge for a number is permanent, so it is kept only if the variant got its number.
  if (index.ok() && number.admitted()) numbers_.push_back(std::move(number.ticket));
  return index;
}

// ---- owners of engines

InstanceTable::Part::Part() : registration(std::make_shared<Registration>()) {}

bool InstanceTable::Owns(const Engine& engine, const Shares::Account* who) {
  return who == nullptr || !engine.owner || engine.owner->uid == who->holder().uid;
}

bool InstanceTable::HasSession(const Engine& engine, const Claimant& whose) {
  return std::ranges::any_of(engine.sessions,
                             [&](const Live& live) { return live.whose == whose; });
}

InstanceTable::Part* InstanceTable::PartOf(Engine& engine, const Shares::Account* who) {
  if (Owns(engine, who)) return &engine.own;
  const auto other = std::ranges::find(engine.others, Claimant{who->holder().uid},
                                       [](auto& o) { return o.first; });
  return other == engine.others.end() ? nullptr : &other->second;
}

absl::Status InstanceTable::Join(Engine& engine, const Shares::Account& who) {
  if (PartOf(engine, &who) != nullptr) return absl::OkStatus();
  Shares::Answer place = who.OfUid().Take(ShareKind::kEngines);
  if (!place.admitted()) return absl::ResourceExhaustedError(place.why);
  const Claimant claimant{who.holder().uid};
  engine.others.emplace_back(claimant, Part()).second.charged.push_back(std::move(place.ticket));
  // The new part is empty, so PassOn does not change the registration that Lookup uses.
  if (!AwaitsOwner(engine)) (void)PassOn(engine, claimant);
  return absl::OkStatus();
}

bool InstanceTable::AwaitsOwner(const Engine& engine) const {
  return HasSession(engine, *engine.owner) || clock_.Now() < engine.owner_left + kOwnerReturns;
}

std::vector<std::string> InstanceTable::PassOnWhatIsLeft() {
  std::vector<std::string> passed;
  for (auto& [engine_id, engine] : engines_) {
    if (engine.others.empty() || AwaitsOwner(engine)) continue;
    const auto next = std::ranges::find_if(engine.sessions,
                                           [](const Live& live) { return live.whose.has_value(); });
    if (next == engine.sessions.end()) continue;
    (void)PassOn(engine, *next->whose);
    passed.push_back(engine_id);
  }
  return passed;
}

void InstanceTable::ExpectOwner(const std::string& engine_id, uid_t uid) {
  MutexLock lock(mu_);
  const auto engine = engines_.find(engine_id);
  if (engine == engines_.end()) return;
  engine->second.owner = Claimant{uid};
  engine->second.owner_left = clock_.Now();
}

std::optional<uid_t> InstanceTable::OwnerOf(const std::string& engine_id) const {
  MutexLock lock(mu_);
  const auto engine = engines_.find(engine_id);
  if (engine == engines_.end() || !engine->second.owner) return std::nullopt;
  return engine->second.owner->uid;
}

bool InstanceTable::PassOn(Engine& engine, const Claimant& to) {
  const auto next = std::ranges::find(engine.others, to, [](auto& o) { return o.first; });
  Part part = std::move(next->second);
  engine.others.erase(next);
  const bool had_part = !part.empty();
  if (had_part) {
    engine.former = Part();
  } else if (!engine.own.empty()) {
    engine.former = std::move(engine.own);
  }
  engine.own = std::move(part);
  engine.owner = to;
  return had_part;
}

void InstanceTable::TellOfOther(const std::string& engine_id, const Claimant& who,
                                const Claimant& owner) const {
  if (!on_other_) return;
  on_other_(who.ToString(),
            absl::StrCat("engine id '", engine_id, "' is used by ", who.ToString(),
                         " while it belongs to ", owner.ToString(),
                         ": only the owner's reports about the engine count; give each engine an "
                         "id of its own"));
}

absl::StatusOr<InstanceTable::Engine*> InstanceTable::Enter(const std::string& engine_id,
                                                            const Shares::Account* who) {
  auto found = engines_.find(engine_id);
  if (found == engines_.end()) {
    if (engines_.size() >= kEnginesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the limit of ", kEnginesMax,
                       " engines is reached: clear the blocks of engines that are not used"));
    }
    Engine engine;
    if (who != nullptr) {
      Shares::Answer place = who->OfUid().Take(ShareKind::kEngines);
      if (!place.admitted()) return absl::ResourceExhaustedError(place.why);
      engine.own.charged.push_back(std::move(place.ticket));
    }
    found = engines_.emplace(engine_id, std::move(engine)).first;
  }
  Engine& engine = found->second;
  if (who != nullptr && !engine.owner) engine.owner = Claimant{who->holder().uid};
  return &engine;
}

absl::Status InstanceTable::SessionBegan(const std::string& engine_id,
                                         const wire::InstanceSession& session,
                                         const Shares::Account* who) {
  std::optional<Claimant> whose, owner;
  if (who != nullptr) whose = Claimant{who->holder().uid};
  {
    MutexLock lock(mu_);
    LARDER_ASSIGN_OR_RETURN(Engine* const engine, Enter(engine_id, who));
    if (who != nullptr) {
      LARDER_RETURN_IF_ERROR(Join(*engine, *who));
    }
    engine->sessions.push_back({session, clock_.Now(), whose});
    owner = engine->owner;
  }
  if (whose && owner != whose) TellOfOther(engine_id, *whose, *owner);
  return absl::OkStatus();
}

bool InstanceTable::IsOf(const std::string& engine_id, const Shares::Account& who) const {
  MutexLock lock(mu_);
  const auto engine = engines_.find(engine_id);
  return engine == engines_.end() || Owns(engine->second, &who);
}

void InstanceTable::SessionEnded(const std::string& engine_id, SessionId session) {
  MutexLock lock(mu_);
  const auto it = engines_.find(engine_id);
  if (it == engines_.end()) return;
  Engine& engine = it->second;
  const auto ended = std::ranges::find_if(
      engine.sessions, [&](const Live& live) { return live.session.session == session; });
  if (ended == engine.sessions.end()) return;
  const std::optional<Claimant> whose = ended->whose;
  engine.sessions.erase(ended);
  if (!whose || HasSession(engine, *whose)) return;
  if (whose == engine.owner) {
    engine.owner_left = clock_.Now();
  } else {
    std::erase_if(engine.others, [&](const auto& other) { return other.first == *whose; });
  }
}

std::vector<InstanceTable::Candidate> InstanceTable::Candidates(const Digest& content_id,
                                                                std::string_view engine_id) const {
  std::vector<Candidate> out;
  MutexLock lock(mu_);
  for (const auto& [id, engine] : engines_) {
    if (!engine_id.empty() && engine_id != id) continue;
    const auto& ids = engine.registration()->content_ids;
    if (engine.registration()->variants.empty()) continue;
    if (std::find(ids.begin(), ids.end(), content_id) == ids.end()) continue;
    out.push_back(
        {id, !engine.sessions.empty(), engine.registration(), engine.owner, engine.owner_left});
  }
  KeepSomeOfEach(&out);
  return out;
}

void InstanceTable::KeepSomeOfEach(std::vector<Candidate>* candidates) {
  if (candidates->size() <= kCandidatesPerUser) return;
  std::ranges::stable_sort(*candidates, std::greater(), [](const Candidate& candidate) {
    return std::pair(candidate.attached, candidate.owner_left);
  });
  std::map<std::optional<uid_t>, size_t> of_user;
  std::erase_if(*candidates, [&](const Candidate& candidate) {
    const std::optional<uid_t> user = candidate.owner ? candidate.owner->uid : std::nullopt;
    return ++of_user[user] > kCandidatesPerUser;
  });
}

// The blocks of each variant along a chain, as far as they have been looked up.
class InstanceTable::Found {
 public:
  // For a tier that all engines share.  The result is valid until the next call for the same tier
  // and variant.
  [[nodiscard]] const Presence& Of(const InstanceTable& table, Tier tier, const Variant& variant,
                                   std::span<const Digest> chain) {
    const size_t blocks = chain.size() / (variant.spec.block_tokens / kStepTokens);
    Presence& known = presences_[{tier, variant.index}];
    if (known.blocks.size() < blocks) known = table.PresenceOf(tier, "", variant, chain);
    return known;
  }

 private:
  absl::node_hash_map<std::pair<Tier, VariantIndex>, Presence> presences_;
};

void InstanceTable::LookUp(Tier tier, const std::string& engine_id, VariantIndex variant,
                           std::span<const Digest> keys,
                           std::span<BlockIndex::Presence> blocks) const {
  if (tier != Tier::kDevice) return store_.index().Lookup(variant, keys, blocks);
  std::vector<char> there(keys.size());
  devices_->Lookup(engine_id, variant, keys, there);
  for (size_t b = 0; b < blocks.size(); ++b) blocks[b].tiers = there[b] ? TierBit(tier) : 0;
}

void InstanceTable::Intersect(Tier tier, const Presence& presence, std::vector<char>* steps) {
  // `presence` may be of a longer chain than `steps`.
  const size_t blocks = std::min(presence.blocks.size(), steps->size() / presence.block_steps);
  std::fill(steps->begin() + static_cast<ptrdiff_t>(blocks * presence.block_steps), steps->end(),
            0);
  for (size_t b = 0; b < blocks; ++b) {
    if (IsIn(tier, presence.blocks[b])) continue;
    const auto begin = steps->begin() + static_cast<ptrdiff_t>(b * presence.block_steps);
    std::fill(begin, begin + presence.block_steps, 0);
  }
}

uint64_t InstanceTable::BytesIn(const Presence& presence, const std::vector<char>& steps) {
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

InstanceTable::Presence InstanceTable::PresenceOf(Tier tier, const std::string& engine_id,
                                                  const Variant& variant,
                                                  std::span<const Digest> chain) const {
  Presence presence;
  presence.block_steps = variant.spec.block_tokens / kStepTokens;
  const size_t blocks = chain.size() / presence.block_steps;
  presence.blocks.resize(blocks);
  if (presence.block_steps == 1) {
    LookUp(tier, engine_id, variant.index, chain, presence.blocks);
    return presence;
  }
  std::vector<Digest> keys(blocks);
  for (size_t b = 0; b < blocks; ++b) keys[b] = chain[(b + 1) * presence.block_steps - 1];
  LookUp(tier, engine_id, variant.index, keys, presence.blocks);
  return presence;
}

wire::TierHit InstanceTable::Hit(const TierRate& rate, const Candidate& candidate,
                                 std::span<const Digest> chain, Found* found) const {
  const wire::TierHit none{.tier = rate.tier, .contiguous = {}, .ranges = {}, .bytes = {}};
  const bool shared = rate.tier != Tier::kDevice;
  std::vector<char> steps(chain.size(), 1);
  std::deque<Presence> of_device;
  std::vector<const Presence*> all;
  all.reserve(candidate.registration->variants.size());
  for (const Variant& variant : candidate.registration->variants) {
    const Presence& presence =
        shared ? found->Of(*this, rate.tier, variant, chain)
               : of_device.emplace_back(PresenceOf(rate.tier, candidate.engine_id, variant, chain));
    Intersect(rate.tier, presence, &steps);
    // Steps behind the last one that all variants so far have cannot be part of the answer.
    while (!steps.empty() && steps.back() == 0) steps.pop_back();
    if (steps.empty()) return none;
    chain = chain.first(steps.size());
    all.push_back(&presence);
  }
  wire::TierHit hit = none;
  hit.ranges = Ranges(steps);
  if (!hit.ranges.empty() && hit.ranges.front().begin == 0)
    hit.contiguous = TokenCount(hit.ranges.front().end);
  for (const Presence* const presence : all) hit.bytes += ByteCount(BytesIn(*presence, steps));
  hit.load_s = static_cast<double>(hit.bytes.value()) / rate.bytes_per_s;
  return hit;
}

std::vector<wire::InstanceHit> InstanceTable::Lookup(const Digest& content_id,
                                                     std::span<const Digest> chain,
                                                     std::string_view engine_id) const {
  std::vector<wire::InstanceHit> hits;
  Found found;
  for (const Candidate& candidate : Candidates(content_id, engine_id)) {
    std::vector<wire::TierHit> tiers;
    for (const TierRate& rate : rates_) {
      if (rate.tier == Tier::kDevice &&
          (devices_->blocks() == 0 || !devices_->Has(candidate.engine_id)))
        continue;
      wire::TierHit hit = Hit(rate, candidate, chain, &found);
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
  info.contents = engine.registration()->contents;
  for (const Variant& variant : engine.registration()->variants) {
    info.variants.push_back(variant.spec);
    const BlockIndex::VariantTotals totals = store_.index().TotalsOf(variant.index);
    info.blocks += totals.blocks + totals.disk_only;
    info.bytes += totals.bytes;
  }
  return info;
}

InstanceTable::Page InstanceTable::List(std::string_view after, size_t most,
                                        size_t bytes_most) const {
  Page page;
  size_t bytes = 0;
  MutexLock lock(mu_);
  auto it = after.empty() ? engines_.begin() : engines_.upper_bound(std::string(after));
  for (; it != engines_.end(); ++it) {
    page.more = page.instances.size() == most;
    if (page.more) break;
    wire::InstanceInfo info = Describe(it->first, it->second);
    bytes += Weight(info);
    page.more = bytes > bytes_most && !page.instances.empty();
    if (page.more) break;
    page.instances.push_back(std::move(info));
  }
  return page;
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
      for (const Variant& variant : engine.registration()->variants)
        variants.push_back(variant.index);
    }
  }
  // Blocks that a caller stored under an engine id of another owner may be of variants that no
  // registration has.
  if (engine_id.empty()) {
    const std::vector<VariantIndex> stored = store_.index().StoredVariants();
    variants.insert(variants.end(), stored.begin(), stored.end());
  }
  std::sort(variants.begin(), variants.end());
  variants.erase(std::unique(variants.begin(), variants.end()), variants.end());
  return variants;
}

void InstanceTable::Collect() {
  std::vector<std::string> changed;
  {
    MutexLock lock(mu_);
    changed = PassOnWhatIsLeft();
    absl::erase_if(engines_, [&](const auto& entry) {
      const Engine& engine = entry.second;
      if (!engine.sessions.empty()) return false;
      const auto& variants = engine.registration()->variants;
      const bool empty =
          std::all_of(variants.begin(), variants.end(), [this](const Variant& variant) {
            const BlockIndex::VariantTotals totals = store_.index().TotalsOf(variant.index);
            return totals.blocks + totals.disk_only == 0;
          });
      if (empty) changed.push_back(entry.first);
      return empty;
    });
  }
  if (!on_change_) return;
  for (const std::string& engine_id : changed) on_change_(engine_id);
}

}  // namespace larder
