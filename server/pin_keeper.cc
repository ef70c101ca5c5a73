#include "server/pin_keeper.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "storage/check.h"

namespace larder {
namespace {

constexpr std::string_view kPrefix = "pin/";
constexpr size_t kKeyBytes = 2 * sizeof(Digest) + 1;  // variant, digest, tier
constexpr size_t kFactsAtOnce = 4096;
constexpr size_t kExpiredAtOnce = 4096;
constexpr std::chrono::seconds kSweepPeriod{10};  // while all is where it is pinned
constexpr std::chrono::seconds kSweepPeriodAstray{1};

// A pin as its fact names it.
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

}  // namespace

DiskTier::Fact PinKeeper::FactOf(const Digest& variant, std::string_view owner, const PinKey& key,
                                 uint64_t deadline_ms) {
  DiskTier::Fact fact;
  fact.key = kPrefix;
  for (const Digest* digest : {&variant, &key.digest})
    fact.key.append(reinterpret_cast<const char*>(digest->bytes.data()), sizeof digest->bytes);
  fact.key.push_back(static_cast<char>(key.tier));
  fact.key.append(owner);
  fact.value.resize(sizeof deadline_ms);
  std::memcpy(fact.value.data(), &deadline_ms, sizeof deadline_ms);
  return fact;
}

DiskTier::Fact PinKeeper::Forgotten(std::string_view owner, const PinKey& key) const {
  DiskTier::Fact fact = FactOf(store_.index().VariantId(key.variant), owner, key, 0);
  fact.value.clear();
  return fact;
}

PinKeeper::PinKeeper(BlockStore& store, Disk disk, Counters& counters, WallClock now_ms)
    : store_(store),
      disk_(disk),
      counters_(counters),
      now_ms_(std::move(now_ms)),
      under_way_(std::make_shared<std::atomic<size_t>>(0)) {
  LARDER_CHECK((disk.tier == nullptr) == (disk.work == nullptr));
  if (disk_.tier != nullptr) writer_ = std::thread([this] { Run(); });
}

PinKeeper::~PinKeeper() {
  if (!writer_.joinable()) return;
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyOne();
  }
  writer_.join();
}

size_t PinKeeper::Load() {
  if (disk_.tier == nullptr) return 0;
  size_t loaded = 0;
  std::vector<DiskTier::Fact> over;
  const uint64_t now_ms = now_ms_();
  disk_.tier->ForEachFact([&](const std::string& name, const std::string& value) {
    std::optional<NamedPin> pin = ParseKey(name);
    uint64_t deadline_ms = 0;
    if (!pin || value.size() != sizeof deadline_ms) return;
    std::memcpy(&deadline_ms, value.data(), sizeof deadline_ms);
    const auto variant = store_.index().InternVariant(pin->variant);
    if (deadline_ms <= now_ms || !variant.ok()) return over.push_back({name, ""});
    pin->key.variant = *variant;
    loaded += store_.pins().Restore(pin->owner, pin->key, deadline_ms) ? 1 : 0;
  });
  Write({.facts = std::move(over), .statuses = {}, .answer = {}});
  return loaded;
}

// ---- what callers want

void PinKeeper::Pin(std::string_view owner, std::span<const PinKey> keys, uint64_t deadline_ms,
                    Answer answer) {
  LARDER_CHECK(!owner.empty() && owner.size() <= kOwnerBytesMax);
  Request request;
  request.answer = std::move(answer);
  std::vector<PinKey> elsewhere;
  for (const PinKey& key : keys) {
    const BlockStatus status = store_.pins().Add(owner, key, deadline_ms);
    request.statuses.push_back(status);
    if (status == BlockStatus::kPending) elsewhere.push_back(key);
    if (status == BlockStatus::kOk || status == BlockStatus::kPending)
      request.facts.push_back(
          FactOf(store_.index().VariantId(key.variant), owner, key, deadline_ms));
  }
  Write(std::move(request));
  Bring(elsewhere);
}

// Also of what is not pinned: it may be on disk still, from a call whose write failed.
void PinKeeper::Unpin(std::string_view owner, std::span<const PinKey> keys, Answer answer) {
  Request request;
  request.answer = std::move(answer);
  for (const PinKey& key : keys) {
    const bool pinned = store_.pins().Remove(owner, key);
    request.statuses.push_back(pinned ? BlockStatus::kOk : BlockStatus::kMissing);
    request.facts.push_back(Forgotten(owner, key));
  }
  Write(std::move(request));
}

void PinKeeper::UnpinAll(std::string_view owner, Answer answer) {
  Request request;
  request.answer = std::move(answer);
  for (const larder::Pin& pin : store_.pins().RemoveOwner(owner))
    request.facts.push_back(Forgotten(pin.owner, pin.key));
  request.statuses.assign(request.facts.size(), BlockStatus::kOk);
  Write(std::move(request));
}

std::vector<BlockStatus> PinKeeper::Prefetch(std::span<const PinKey> keys, uint64_t deadline_ms) {
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

void PinKeeper::Write(Request request) {
  if (!writer_.joinable() || request.facts.empty()) {
    if (request.answer) request.answer(absl::OkStatus(), std::move(request.statuses));
    return;
  }
  MutexLock lock(mu_);
  requests_.push_back(std::move(request));
  wake_.NotifyOne();
}

void PinKeeper::Run() {
  pthread_setname_np(pthread_self(), "pins");
  for (;;) {
    std::vector<Request> requests;
    {
      MutexLock lock(mu_);
      while (!stop_ && requests_.empty()) wake_.Wait(mu_);
      if (requests_.empty()) return;
      requests.swap(requests_);
    }
    WriteAll(std::move(requests));
  }
}

// In the order in which they came: of two facts of one name the later one counts.
void PinKeeper::WriteAll(std::vector<Request> requests) {
  std::map<std::string, std::string> last;
  for (Request& request : requests) {
    for (DiskTier::Fact& fact : request.facts) last[std::move(fact.key)] = std::move(fact.value);
  }
  std::vector<DiskTier::Fact> facts;
  for (auto& [key, value] : last) facts.push_back({key, std::move(value)});
  absl::Status status;
  for (size_t from = 0; from < facts.size() && status.ok(); from += kFactsAtOnce) {
    const size_t count = std::min(kFactsAtOnce, facts.size() - from);
    status = disk_.tier->PutFacts(std::span(facts).subspan(from, count));
  }
  if (!status.ok()) ++counters_.pin_writes_failed;
  for (Request& request : requests) {
    if (request.answer) request.answer(status, std::move(request.statuses));
  }
}

// ---- in their time and place

void PinKeeper::Tick(TimePoint now) {
  if (store_.pins().size() == 0) return;
  Expire();
  if (disk_.work == nullptr || disk_.work->recovering()) return;
  {
    MutexLock lock(sweep_mu_);
    if (now < next_sweep_ || under_way_->load() > 0) return;
    next_sweep_ = now + kSweepPeriod;
  }
  const std::vector<PinKey> astray = Astray();
  if (astray.empty()) return;
  Bring(astray);
  MutexLock lock(sweep_mu_);
  next_sweep_ = now + kSweepPeriodAstray;
}

void PinKeeper::Expire() {
  Request request;
  for (const larder::Pin& pin : store_.pins().Expire(now_ms_(), kExpiredAtOnce)) {
    ++counters_.pins_expired;
    if (!pin.owner.empty()) request.facts.push_back(Forgotten(pin.owner, pin.key));
  }
  Write(std::move(request));
}

std::vector<PinKey> PinKeeper::Astray() const {
  std::vector<PinKey> astray;
  store_.index().ForEach([&](const BlockIndex::View& view) {
    if (astray.size() >= kBroughtAtOnce) return;
    if (view.pinned_host && view.state == BlockState::kDisk)
      astray.push_back({view.variant, view.digest, Tier::kHost});
    if (view.pinned_disk && view.state == BlockState::kHost)
      astray.push_back({view.variant, view.digest, Tier::kDisk});
  });
  return astray;
}

void PinKeeper::Bring(std::span<const PinKey> keys) {
  if (disk_.work == nullptr) return;
  std::map<VariantIndex, std::vector<Digest>> promoted;
  for (const PinKey& key : keys) {
    if (key.tier == Tier::kHost) {
      promoted[key.variant].push_back(key.digest);
    } else {
      disk_.work->spiller().Offer(SessionId{}, key.variant, key.digest);
    }
  }
  for (const auto& [variant, digests] : promoted) Promote(variant, digests);
}

// What finds no room, or fails, is met again by the next sweep.
void PinKeeper::Promote(VariantIndex variant, std::span<const Digest> digests) {
  Promoter::Job job;
  job.variant = variant;
  std::vector<EntryRef> held;
  for (const Digest& digest : digests) {
    const BlockIndex::Held block = store_.HoldUntouched(variant, digest);
    if (block.ref == EntryRef{}) continue;
    held.push_back(block.ref);
    if (!OnDiskAlone(block.state)) continue;
    job.blocks.push_back(
        {held.size(), block.ref, digest, block.disk_location, block.extent.bytes()});
  }
  if (!job.blocks.empty()) {
    const size_t blocks = job.blocks.size();
    job.ready = [under_way = under_way_](const Promoter::Wanted&, BlockStatus,
                                         const BlockIndex::Held&) { under_way->fetch_sub(1); };
    under_way_->fetch_add(blocks);
    Promoter::Prepared prepared = disk_.work->promoter().Prepare(std::move(job));
    if (prepared == nullptr) under_way_->fetch_sub(blocks);
    if (prepared != nullptr) disk_.work->promoter().Submit(std::move(prepared));
  }
  store_.Unhold(held);
}

}  // namespace larder
