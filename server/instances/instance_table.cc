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
#include "storage/format/prefix.h"
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
  for (const auto& content : contents) {
    for (const std::string* part :
         {&content.spec.tenant, &content.spec.model, &content.spec.revision, &content.spec.lora})
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

// ---- what an engine registered

InstanceTable::Content::Content(ContentSpec content) : spec(std::move(content)) {
  spec.salt.clear();
  spec.multimodal.clear();
  id = spec.Id();
  model = ModelOf(spec);
}

Digest InstanceTable::ModelOf(ContentSpec content) {
  content.salt.clear();
  content.multimodal.clear();
  content.lora.clear();
  return content.Id();
}

bool InstanceTable::Registration::HasContent(const Digest& id) const {
  return std::ranges::find(contents, id, &Content::id) != contents.end();
}

bool InstanceTable::Registration::HasModel(const Digest& model) const {
  return std::ranges::find(contents, model, &Content::model) != contents.end();
}

bool InstanceTable::Registration::Misses(const Content& content) const {
  if (HasContent(content.id)) return false;
  return contents.size() < kContentsMax || !HasModel(content.model);
}

bool InstanceTable::Registration::Add(Content content) {
  if (contents.size() < kContentsMax) {
    contents.push_back(std::move(content));
    return true;
  }
  const auto spare = std::ranges::find_if(contents, [this](const Content& one) {
    return std::ranges::count(contents, one.model, &Content::model) > 1;
  });
  if (spare == contents.end()) return false;
  *spare = std::move(content);
  return true;
}

bool InstanceTable::Said::IsIn(const Registration& registration) const {
  return std::ranges::none_of(
             contents, [&](const Content& content) { return registration.Misses(content); }) &&
         std::ranges::all_of(variant_ids,
                             [&](const Digest& id) { return registration.places.contains(id); });
}

absl::Status InstanceTable::Said::CheckKinds(const Registration& registration) const {
  for (size_t i = 0; i < variants.size(); ++i) {
    const auto place = registration.places.find(variant_ids[i]);
    if (place == registration.places.end()) continue;
    if (registration.variants[place->second].spec == variants[i]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("variant of group '", variants[i].group,
                     "': this engine has registered it with another kind or window_tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<VariantIndex>> InstanceTable::Register(
    const std::string& engine_id, std::span<const ContentSpec> contents,
    std::span<const VariantSpec> variants, const Shares::Account* who) {
  Said said{.contents = {}, .variants = variants, .variant_ids = {}};
  for (const ContentSpec& content : contents) {
    LARDER_RETURN_IF_ERROR(content.Validate());
    said.contents.emplace_back(content);
  }
  for (const VariantSpec& variant : variants) {
    LARDER_RETURN_IF_ERROR(variant.Validate());
    said.variant_ids.push_back(variant.Id());
  }
  LARDER_ASSIGN_OR_RETURN(const Extended next, Extend(engine_id, said, who));
  std::vector<VariantIndex> indices;
  for (const Digest& id : said.variant_ids) {
    indices.push_back(next.registration->variants[next.registration->places.at(id)].index);
  }
  if (next.changed && on_change_) on_change_(engine_id);
  if (next.owner) TellOfOther(engine_id, {who->holder().uid}, *next.owner);
  return indices;
}

absl::StatusOr<std::shared_ptr<InstanceTable::Registration>> InstanceTable::With(
    const std::string& engine_id, const Registration& before, const Said& said) {
  auto next = std::make_shared<Registration>(before);
  bool all = true;
  for (const Content& content : said.contents) {
    if (next->Misses(content)) all = next->Add(content) && all;
  }
  for (size_t i = 0; i < said.variants.size(); ++i) {
    if (!next->places.try_emplace(said.variant_ids[i], next->variants.size()).second) continue;
    next->variants.push_back({said.variants[i], VariantIndex::kNone});
  }
  if (!all || next->variants.size() > kVariantsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("engine '", engine_id, "': its registrations would exceed the limit of ",
                     kContentsMax, " models and ", kVariantsMax, " variants per engine"));
  }
  if (!said.IsIn(before) && BytesOf(next->contents, next->variants) > kRegistrationBytesMax) {
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
  LARDER_RETURN_IF_ERROR(said.CheckKinds(before));
  // A Register that adds nothing must copy nothing, because a message may have many.
  if (part != nullptr && said.IsIn(before)) {
    return Extended{.registration = part->registration, .changed = false, .owner = {}};
  }
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<Registration> next, With(engine_id, before, said));
  Extended extended{.registration = next, .changed = false, .owner = {}};
  if (said.IsIn(before)) return extended;
  if (part != &engine.own) extended.owner = engine.owner;
  std::vector<Shares::Ticket> charges;
  if (who != nullptr && part != nullptr) {
    absl::StatusOr<std::vector<Shares::Ticket>> taken = Charge(*who, before, *next);
    if (!taken.ok() && part == &engine.own && !engine.former.empty()) {
      engine.former = Part();  // what takes its place may use its share
      taken = Charge(*who, before, *next);
    }
    LARDER_RETURN_IF_ERROR(taken.status());
    charges = *std::move(taken);
  }
  // Variants get their numbers last: a refused registration must not use up numbers, which are
  // never released.
  LARDER_RETURN_IF_ERROR(Intern(*next, who));
  if (part == nullptr) return extended;
  part->registration = next;
  std::ranges::move(charges, std::back_inserter(part->charged));
  extended.changed = part == &engine.own;
  if (extended.changed) engine.former = Part();
  return extended;
}

absl::StatusOr<std::vector<Shares::Ticket>> InstanceTable::Charge(const Shares::Account& who,
                                                                  const Registration& before,
                                                                  const Registration& next) {
  const size_t bytes_before = BytesOf(before.contents, before.variants);
  const size_t bytes = BytesOf(next.contents, next.variants);
  std::vector<Shares::Ticket> taken;
  for (const auto& [kind, amount] :
       {std::pair(ShareKind::kContents, next.contents.size() - before.contents.size()),
        std::pair(ShareKind::kVariants, next.variants.size() - before.variants.size()),
        std::pair(ShareKind::kRegistrationBytes, bytes - std::min(bytes, bytes_before))}) {
    Shares::Answer answer = who.OfUid().Take(kind, amount);
    if (!answer.admitted()) return absl::ResourceExhaustedError(answer.why);
    taken.push_back(std::move(answer.ticket));
  }
  return taken;
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
  engine.others.emplace_back(claimant, Part()).second.place = std::move(place.ticket);
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
      engine.own.place = std::move(place.ticket);
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
    const bool first =
        whose ? Owns(*engine, who) && !HasSession(*engine, *whose) : engine->sessions.empty();
    if (first) BeginAgain(*engine);
    engine->sessions.push_back({session, clock_.Now(), whose});
    owner = engine->owner;
  }
  if (whose && owner != whose) TellOfOther(engine_id, *whose, *owner);
  return absl::OkStatus();
}

void InstanceTable::BeginAgain(Engine& engine) {
  if (engine.own.empty()) return;
  engine.former = Part();
  engine.former.registration = std::exchange(engine.own.registration, Part().registration);
  engine.former.charged = std::exchange(engine.own.charged, {});
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

std::vector<InstanceTable::Candidate> InstanceTable::Candidates(const ContentSpec& content,
                                                                std::string_view engine_id) const {
  std::vector<Candidate> out;
  const Digest model = ModelOf(content);
  MutexLock lock(mu_);
  for (const auto& [id, engine] : engines_) {
    if (!engine_id.empty() && engine_id != id) continue;
    if (engine.registration()->variants.empty()) continue;
    if (!engine.registration()->HasModel(model)) continue;
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
  if (!std::ranges::all_of(candidate.registration->variants, [](const Variant& variant) {
        return variant.spec.kind == GroupKind::kFull;
      })) {
    return HitOfGroups(rate, candidate, chain, found);
  }
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

wire::TierHit InstanceTable::HitOfGroups(const TierRate& rate, const Candidate& candidate,
                                         std::span<const Digest> chain, Found* found) const {
  wire::TierHit hit{.tier = rate.tier, .contiguous = {}, .ranges = {}, .bytes = {}};
  std::vector<char> ends(chain.size(), 1);
  std::deque<Presence> of_device;
  std::vector<const Presence*> all;
  for (const Variant& variant : candidate.registration->variants) {
    all.push_back(rate.tier == Tier::kDevice ? &of_device.emplace_back(PresenceOf(
                                                   rate.tier, candidate.engine_id, variant, chain))
                                             : &found->Of(*this, rate.tier, variant, chain));
    std::vector<char> present;
    for (const BlockIndex::Presence& block : all.back()->blocks)
      present.push_back(IsIn(rate.tier, block) ? 1 : 0);
    KeepServable(RuleOf(variant.spec), present, &ends);
    while (!ends.empty() && ends.back() == 0) ends.pop_back();
    if (ends.empty()) return hit;
    chain = chain.first(ends.size());
  }
  const auto tokens = static_cast<uint32_t>(ends.size() * kStepTokens);
  hit.contiguous = TokenCount(tokens);
  hit.ranges = {{0, tokens}};
  uint64_t pages = 0;
  for (size_t v = 0; v < all.size(); ++v) {
    const BlockRange needed = NeededBlocks(RuleOf(candidate.registration->variants[v].spec),
                                           ends.size() / all[v]->block_steps);
    for (size_t b = needed.begin; b < needed.end; ++b) pages += all[v]->blocks[b].pages;
  }
  hit.bytes = ByteCount(pages * kPageBytes);
  hit.load_s = static_cast<double>(hit.bytes.value()) / rate.bytes_per_s;
  return hit;
}

std::vector<wire::InstanceHit> InstanceTable::Lookup(const ContentSpec& content,
                                                     std::span<const Digest> chain,
                                                     std::string_view engine_id) const {
  std::vector<wire::InstanceHit> hits;
  Found found;
  for (const Candidate& candidate : Candidates(content, engine_id)) {
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
  for (const Content& content : engine.registration()->contents)
    info.contents.push_back(content.spec);
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
