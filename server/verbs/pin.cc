#include "server/verbs/pin.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/messages/messages.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr std::string_view kPrefix = "pin/";
constexpr size_t kKeyBytes = 2 * sizeof(Digest) + 1;  // variant, digest, tier
constexpr size_t kFactsAtOnce = 4096;
constexpr size_t kExpiredAtOnce = 512;
constexpr std::chrono::milliseconds kTtlMax = wire::kPinTtlMax;
constexpr Duration kBetweenWrites = std::chrono::seconds(1);  // after a write that the disk refused
constexpr Duration kSweepPeriodMin = std::chrono::seconds(1);
constexpr Duration kSweepPeriodMax = std::chrono::seconds(16);

// A pin as parsed from the key of its fact.
struct NamedPin {
  Digest variant;
  PinKey key;  // without its variant
  std::string owner;
};

std::optional<NamedPin> ParseKey(std::string_view fact) {
  if (!fact.starts_with(kPrefix)) return std::nullopt;
  fact.remove_prefix(kPrefix.size());
  if (fact.size() <= kKeyBytes) return std::nullopt;
  NamedPin pin;
  std::memcpy(pin.variant.bytes.data(), fact.data(), sizeof(Digest));
  std::memcpy(pin.key.digest.bytes.data(), fact.data() + sizeof(Digest), sizeof(Digest));
  pin.key.tier = static_cast<Tier>(fact[2 * sizeof(Digest)]);
  if (pin.key.tier != Tier::kHost && pin.key.tier != Tier::kDisk) return std::nullopt;
  pin.owner = fact.substr(kKeyBytes);
  return pin;
}

std::string KeyOf(const Digest& variant, std::string_view owner, const PinKey& key) {
  std::string fact(kPrefix);
  for (const Digest* digest : {&variant, &key.digest})
    fact.append(reinterpret_cast<const char*>(digest->bytes.data()), sizeof digest->bytes);
  fact.push_back(static_cast<char>(key.tier));
  fact.append(owner);
  return fact;
}

uint64_t HashOf(std::string_view fact) { return std::hash<std::string_view>()(fact); }

}  // namespace

PinVerb::PinVerb(BlockStore& store, DiskParts disk, Counters& counters, WallClock now_ms)
    : store_(store),
      disk_(disk),
      counters_(counters),
      now_ms_(std::move(now_ms)),
      under_way_(std::make_shared<std::atomic<size_t>>(0)),
      sweep_period_(kSweepPeriodMin) {
  LARDER_CHECK((disk.tier == nullptr) == (disk.work == nullptr));
  if (disk_.tier != nullptr) writer_ = std::thread([this] { Run(); });
}

PinVerb::~PinVerb() {
  if (!writer_.joinable()) return;
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyOne();
  }
  writer_.join();
}

// Pins past their deadline are restored too; Tick ends them.
size_t PinVerb::Load() {
  if (disk_.tier == nullptr) return 0;
  const uint64_t latest_ms = DeadlineIn(kTtlMax);  // in case the clock was set back
  size_t loaded = 0;
  disk_.tier->ForEachFact([&](const std::string& fact, const std::string& value) {
    std::optional<NamedPin> pin = ParseKey(fact);
    uint64_t deadline_ms = 0;
    if (!pin || value.size() != sizeof deadline_ms) return;
    std::memcpy(&deadline_ms, value.data(), sizeof deadline_ms);
    const auto variant = store_.index().InternVariant(pin->variant);
    if (!variant.ok()) return;
    pin->key.variant = *variant;
    on_disk_.insert(HashOf(fact));
    const uint64_t until_ms = std::min(deadline_ms, latest_ms);
    if (store_.pins().Restore(pin->owner, pin->key, until_ms)) {
      ++loaded;
    } else {
      ++counters_.pins_not_restored;
    }
  });
  return loaded;
}

// ---- calls

void PinVerb::Pin(std::string_view owner, std::span<const PinKey> keys, uint64_t deadline_ms,
                  Answer answer) {
  LARDER_CHECK(!owner.empty() && owner.size() <= kOwnerBytesMax);
  Waiting waiting{std::move(answer), {}};
  std::vector<Name> changed;
  std::vector<PinKey> elsewhere;
  for (const PinKey& key : keys) {
    const BlockStatus status = store_.pins().Add(owner, key, deadline_ms);
    waiting.statuses.push_back(status);
    if (status == BlockStatus::kPending) elsewhere.push_back(key);
    if (status == BlockStatus::kOk || status == BlockStatus::kPending)
      changed.emplace_back(owner, key);
  }
  Write(std::move(changed), std::move(waiting));
  Bring(elsewhere);
}

void PinVerb::Unpin(std::string_view owner, std::span<const PinKey> keys, Answer answer) {
  Waiting waiting{std::move(answer), {}};
  std::vector<Name> changed;
  for (const PinKey& key : keys) {
    const bool pinned = store_.pins().Remove(owner, key);
    waiting.statuses.push_back(pinned ? BlockStatus::kOk : BlockStatus::kMissing);
    if (pinned) changed.emplace_back(owner, key);
  }
  Write(std::move(changed), std::move(waiting));
}

void PinVerb::UnpinAll(std::string_view owner, Answer answer) {
  EndPins(store_.pins().RemoveIf([&](std::string_view who, const PinKey&) { return who == owner; }),
          std::move(answer));
}

void PinVerb::UnpinBlocks(absl::FunctionRef<bool(VariantIndex, const Digest&)> which,
                          Answer answer) {
  EndPins(store_.pins().RemoveIf(
              [&](std::string_view, const PinKey& key) { return which(key.variant, key.digest); }),
          std::move(answer));
}

// Prefetches, which are pins without an owner, are not on disk, so they are not written.
void PinVerb::EndPins(std::span<const larder::Pin> ended, Answer answer) {
  std::vector<Name> changed;
  for (const larder::Pin& pin : ended) {
    if (!pin.owner.empty()) changed.emplace_back(pin.owner, pin.key);
  }
  Waiting waiting{std::move(answer), std::vector<BlockStatus>(ended.size(), BlockStatus::kOk)};
  Write(std::move(changed), std::move(waiting));
}

std::vector<BlockStatus> PinVerb::Prefetch(std::span<const PinKey> keys, uint64_t deadline_ms) {
  std::vector<BlockStatus> statuses;
  std::vector<PinKey> elsewhere;
  for (const PinKey& key : keys) {
    LARDER_CHECK(key.tier == Tier::kHost);
    statuses.push_back(store_.pins().Add("", key, deadline_ms));
    if (statuses.back() == BlockStatus::kPending) elsewhere.push_back(key);
  }
  Bring(elsewhere);
  return statuses;
}

// ---- on disk

void PinVerb::Write(std::vector<Name> changed, Waiting waiting) {
  if (writer_.joinable()) {
    MutexLock lock(mu_);
    changed_.insert(std::make_move_iterator(changed.begin()),
                    std::make_move_iterator(changed.end()));
    // changed_ may also have changes of earlier calls, such as changes that the disk did not
    // accept.
    if (!changed_.empty()) {
      if (waiting.answer) waiting_.push_back(std::move(waiting));
      wake_.NotifyOne();
      return;
    }
  }
  if (waiting.answer) waiting.answer(absl::OkStatus(), std::move(waiting.statuses));
}

bool PinVerb::AwaitWork(Names* changed, std::vector<Waiting>* waiting) {
  MutexLock lock(mu_);
  while (!stop_ && waiting_.empty()) {
    if (changed_.empty()) {
      wake_.Wait(mu_);
    } else if (!wake_.WaitUntil(mu_, not_before_)) {
      break;
    }
  }
  changed->swap(changed_);
  waiting->swap(waiting_);
  return !stop_ || !changed->empty() || !waiting->empty();
}

void PinVerb::Run() {
  pthread_setname_np(pthread_self(), "pins");
  for (bool last = false; !last;) {
    Names changed;
    std::vector<Waiting> waiting;
    if (!AwaitWork(&changed, &waiting)) return;
    const absl::Status status = WriteNames(changed);
    for (Waiting& who : waiting) who.answer(status, std::move(who.statuses));
    MutexLock lock(mu_);
    last = stop_ && waiting_.empty() && (changed_.empty() || !status.ok());
  }
}

absl::Status PinVerb::WriteNames(const Names& names) {
  const std::vector<Name> all(names.begin(), names.end());
  absl::Status status;
  size_t written = 0;
  while (written < all.size() && status.ok()) {
    const size_t count = std::min(kFactsAtOnce, all.size() - written);
    status = WriteSome(std::span(all).subspan(written, count));
    if (status.ok()) written += count;
  }
  if (status.ok()) return status;
  ++counters_.pin_writes_failed;
  MutexLock lock(mu_);
  changed_.insert(all.begin() + static_cast<std::ptrdiff_t>(written), all.end());
  not_before_ = SteadyNow() + kBetweenWrites;
  return absl::UnavailableError(
      absl::StrCat("the disk did not take the pins; they hold in this daemon, which tries again to "
                   "write them: ",
                   status.message()));
}

absl::Status PinVerb::WriteSome(std::span<const Name> names) {
  std::vector<DiskTier::Fact> pinned, forgotten;
  for (const auto& [owner, key] : names) {
    DiskTier::Fact fact{KeyOf(store_.index().VariantId(key.variant), owner, key), ""};
    if (const auto deadline_ms = store_.pins().DeadlineOf(owner, key)) {
      fact.value.resize(sizeof *deadline_ms);
      std::memcpy(fact.value.data(), &*deadline_ms, sizeof *deadline_ms);
      on_disk_.insert(HashOf(fact.key));  // even if the write fails, a shard may have the fact
      pinned.push_back(std::move(fact));
    } else if (on_disk_.contains(HashOf(fact.key))) {
      forgotten.push_back(std::move(fact));
    }
  }
  if (!forgotten.empty()) {  // in a call of its own, because deletions need no space
    LARDER_RETURN_IF_ERROR(disk_.tier->PutFacts(forgotten));
    for (const DiskTier::Fact& fact : forgotten) on_disk_.erase(HashOf(fact.key));
  }
  return pinned.empty() ? absl::OkStatus() : disk_.tier->PutFacts(pinned);
}

// ---- deadlines and tiers

void PinVerb::Tick(TimePoint now) {
  if (store_.pins().size() == 0) return;
  Expire();
  if (disk_.work == nullptr || disk_.work->recovering() || under_way_->load() > 0) return;
  {
    MutexLock lock(sweep_mu_);
    if (now < next_sweep_) return;
  }
  Sweep();
  MutexLock lock(sweep_mu_);
  next_sweep_ = now + sweep_period_;
}

void PinVerb::Expire() {
  std::vector<Name> changed;
  for (const larder::Pin& pin : store_.pins().Expire(now_ms_(), kExpiredAtOnce)) {
    ++counters_.pins_expired;
    if (!pin.owner.empty()) changed.emplace_back(pin.owner, pin.key);
  }
  if (!changed.empty()) Write(std::move(changed), {});
}

// The period doubles, up to kSweepPeriodMax, while Astray finds no blocks or as many as before.
void PinVerb::Sweep() {
  std::vector<PinKey> astray;
  {
    MutexLock lock(sweep_mu_);
    size_t all = 0;
    astray = Astray(&all);
    const bool better = all != astray_ && all > 0;
    astray_ = all;
    sweep_period_ = better ? kSweepPeriodMin : std::min(2 * sweep_period_, kSweepPeriodMax);
  }
  Bring(astray);
}

std::vector<PinKey> PinVerb::Astray(size_t* all) {
  std::vector<PinKey> astray;
  store_.index().ForEach([&](const BlockIndex::View& view) {
    if (view.pinned_host && view.state == BlockState::kDisk)
      astray.push_back({view.variant, view.digest, Tier::kHost});
    if (view.pinned_disk && view.state == BlockState::kHost)
      astray.push_back({view.variant, view.digest, Tier::kDisk});
  });
  *all = astray.size();
  if (astray.size() <= kBroughtAtOnce) return astray;
  passed_ %= astray.size();
  std::rotate(astray.begin(), astray.begin() + static_cast<std::ptrdiff_t>(passed_), astray.end());
  astray.resize(kBroughtAtOnce);
  passed_ += kBroughtAtOnce;
  return astray;
}

void PinVerb::Bring(std::span<const PinKey> keys) {
  if (disk_.work == nullptr) return;
  std::map<VariantIndex, std::vector<Digest>> promoted;
  for (const PinKey& key : keys) {
    if (key.tier == Tier::kHost) {
      promoted[key.variant].push_back(key.digest);
    } else {
      Spill(key);
    }
  }
  for (const auto& [variant, digests] : promoted) Promote(variant, digests);
}

// Offers the block only while the spiller has little to do, because a block that was just published
// may be in the spiller's queue already.
void PinVerb::Spill(const PinKey& key) {
  Spiller& spiller = disk_.work->spiller();
  if (spiller.stats().queued < kBroughtAtOnce) spiller.Offer(SessionId{}, key.variant, key.digest);
}

// If a promotion fails or finds no capacity, a later Sweep may try it again.
void PinVerb::Promote(VariantIndex variant, std::span<const Digest> digests) {
  under_way_->fetch_add(digests.size());
  const auto ready = [under_way = under_way_](size_t, BlockStatus) { under_way->fetch_sub(1); };
  if (!disk_.work->Promote(variant, digests, ready)) under_way_->fetch_sub(digests.size());
}

}  // namespace larder
