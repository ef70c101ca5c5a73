#include "server/sessions/promise_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "storage/format/prefix.h"

namespace larder {
namespace {

constexpr uint32_t kRetryAfterFullMs = 20;
// A block may leave between the lookup and the hold.  Each further try is for a shorter prefix.
constexpr int kTries = 4;

bool IsThere(const BlockIndex::Presence& block, bool disk) {
  const TierSet wanted = TierBit(Tier::kHost) | (disk ? TierBit(Tier::kDisk) : TierSet{0});
  return (block.tiers & wanted) != 0;
}

}  // namespace

// ---- making a promise

PromiseTable::Part PromiseTable::PartOf(const SessionVariant& variant,
                                        std::span<const Digest> steps, bool disk) const {
  Part part{.variant = variant, .keys = {}, .found = {}, .present = {}, .held = {}, .got = {}};
  const size_t block_steps = variant.block_tokens / kStepTokens;
  part.keys.reserve(steps.size() / block_steps);
  for (size_t end = block_steps; end <= steps.size(); end += block_steps)
    part.keys.push_back(steps[end - 1]);
  part.found.resize(part.keys.size());
  store_.index().Lookup(variant.index, part.keys, part.found);
  for (const BlockIndex::Presence& block : part.found)
    part.present.push_back(IsThere(block, disk) ? 1 : 0);
  return part;
}

size_t PromiseTable::Servable(const Search& search, size_t steps) {
  std::vector<char> ends(steps, 1);
  for (const Part& part : search.parts) KeepServable(part.variant.rule, part.present, &ends);
  while (!ends.empty() && ends.back() == 0) ends.pop_back();
  return ends.size();
}

BlockRange PromiseTable::Needed(const Search& search, const Part& part, size_t steps) {
  BlockRange needed =
      NeededBlocks(part.variant.rule, steps * kStepTokens / part.variant.block_tokens);
  const size_t first = search.first_token / part.variant.block_tokens;
  needed.begin = std::min(needed.end, std::max(needed.begin, first));
  return needed;
}

size_t PromiseTable::Affordable(Search* search, size_t steps, ByteCount budget) {
  const auto fits = [&](size_t end) {
    uint64_t pages = 0;
    for (const Part& part : search->parts) {
      const BlockRange needed = Needed(*search, part, end);
      for (size_t b = needed.begin; b < needed.end; ++b) pages += part.found[b].pages;
    }
    return pages * kPageBytes <= budget.value();
  };
  size_t most = Servable(*search, steps);
  if (fits(most)) return most;
  search->full = true;
  size_t least = 0;  // fits; `most` does not
  while (least < most) {
    const size_t middle = Servable(*search, (least + most) / 2);
    if (middle > least && fits(middle)) {
      least = middle;
    } else {
      most = (least + most) / 2;
    }
  }
  return least;
}

bool PromiseTable::Hold(Search* search, size_t steps) {
  bool all = true;
  for (Part& part : search->parts) {
    part.held = Needed(*search, part, steps);
    part.got = store_.Acquire(
        part.variant.index,
        std::span(part.keys).subspan(part.held.begin, part.held.end - part.held.begin),
        ByteCount(UINT64_MAX), search->disk ? HoldWhat::kAnyTier : HoldWhat::kHost,
        [](EntryRef) { return false; });
    for (size_t i = 0; i < part.got.blocks.size(); ++i) {
      const BlockIndex::Held& block = part.got.blocks[i];
      search->repeated = search->repeated || block.repeated;
      if (block.ref.value != 0) continue;
      part.present[part.held.begin + i] = 0;
      search->full = search->full || block.full;
      all = false;
    }
  }
  if (all && !search->repeated) return true;
  for (Part& part : search->parts) part.got = {};
  return false;
}

size_t PromiseTable::HoldLongest(Search* search, ByteCount budget) {
  size_t steps = search->steps;
  for (int tries = 0; tries < kTries && !search->repeated; ++tries) {
    steps = Affordable(search, steps, budget);
    if (steps * kStepTokens <= search->first_token) return 0;
    if (Hold(search, steps)) return steps;
  }
  search->full = true;  // the cache changes too quickly: the caller may ask again
  return 0;
}

void PromiseTable::ForgetDisk(Search* search) {
  search->disk = false;
  for (Part& part : search->parts) {
    part.got = {};
    for (size_t b = 0; b < part.found.size(); ++b)
      part.present[b] = part.present[b] != 0 && IsThere(part.found[b], false) ? 1 : 0;
  }
}

wire::PromisedBlocks PromiseTable::Describe(const Part& part) {
  wire::PromisedBlocks blocks;
  blocks.first_block = static_cast<uint32_t>(part.held.begin);
  for (const BlockIndex::Held& block : part.got.blocks) {
    const bool on_disk = OnDiskAlone(block.state);
    blocks.status.push_back(on_disk ? BlockStatus::kPending : BlockStatus::kOk);
    blocks.tiers.push_back(on_disk ? Tier::kDisk : Tier::kHost);
  }
  return blocks;
}

bool PromiseTable::PlanReads(const Caller& caller, LeaseId id, const wire::Promise& request,
                             std::span<const Part> parts, Promoter* promoter,
                             std::vector<Promoter::Prepared>* reads) {
  for (uint32_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    Promoter::Job job;
    job.session = caller.session;
    job.variant = part.variant.index;
    job.remaining = ByteCount(request.remaining_bytes);
    for (size_t i = 0; i < part.got.blocks.size(); ++i) {
      const BlockIndex::Held& block = part.got.blocks[i];
      if (!OnDiskAlone(block.state)) continue;
      const size_t number = part.held.begin + i;
      job.blocks.push_back(
          {number, block.ref, part.keys[number], block.disk_location, block.extent.bytes()});
    }
    if (job.blocks.empty()) continue;
    job.ready = [this, id, p](const Promoter::Wanted& wanted, BlockStatus status,
                              const BlockIndex::Held&) {
      OnRead(id, p, static_cast<uint32_t>(wanted.key), status);
    };
    Promoter::Prepared prepared = promoter->Prepare(std::move(job));
    if (prepared == nullptr) return false;
    reads->push_back(std::move(prepared));
  }
  return true;
}

std::shared_ptr<HoldLedger> PromiseTable::LedgerOf(const Caller& caller) {
  std::weak_ptr<HoldLedger>& known = ledgers_[{caller.engine_id, caller.account.holder().uid}];
  std::shared_ptr<HoldLedger> ledger = known.lock();
  if (ledger == nullptr) {
    ledger = std::make_shared<HoldLedger>(caller.account.OfUid());
    known = ledger;
  }
  return ledger;
}

BlockStatus PromiseTable::Fill(const Caller& caller, LeaseId id, const wire::Promise& request,
                               Promoter* promoter, Search* search, Promise* promise) {
  const ByteCount room(caller.account.OfUid().Room(ShareKind::kLeasedBytes));
  // What the engine holds already need not be charged again.  But it may be other blocks than
  // these; so if the charge is refused, only what fits into the rest of the share is held.
  for (const ByteCount budget : {room + promise->ledger->bytes(), room}) {
    size_t steps = HoldLongest(search, budget);
    if (steps > 0 && search->disk &&
        !PlanReads(caller, id, request, search->parts, promoter, &promise->reads)) {
      // As for a lease, blocks on disk count as missing while too many wait to be read.
      promise->reads.clear();
      ForgetDisk(search);
      steps = HoldLongest(search, budget);
    }
    if (search->repeated) return BlockStatus::kInvalid;
    if (steps == 0) return search->full ? BlockStatus::kFull : BlockStatus::kMissing;
    std::vector<HoldLedger::Block> held;
    for (const Part& part : search->parts) {
      for (const BlockIndex::Held& block : part.got.blocks)
        held.push_back({block.ref, block.extent.bytes()});
    }
    promise->tokens = static_cast<uint32_t>(steps * kStepTokens);
    if (promise->ledger->Add(held, &promise->charged)) return BlockStatus::kOk;
    promise->reads.clear();
    for (Part& part : search->parts) part.got = {};
  }
  return BlockStatus::kFull;
}

PromiseTable::Answer PromiseTable::Make(const Caller& caller, LeaseId id,
                                        const wire::Promise& request,
                                        std::span<const SessionVariant> variants,
                                        Promoter* promoter, size_t* blocks) {
  Answer answer;
  answer.promised.id = request.id;
  size_t per_step = 0;  // in parts of kBlockTokensMax / 16
  absl::flat_hash_set<VariantIndex> once;
  for (const SessionVariant& variant : variants) {
    per_step += kBlockTokensMax / variant.block_tokens;
    if (once.insert(variant.index).second) continue;
    answer.promised.status = BlockStatus::kInvalid;
    return answer;
  }
  Search search;
  search.first_token = request.first_token;
  search.disk = promoter != nullptr;
  constexpr size_t kParts = kBlockTokensMax / kStepTokens;
  search.steps = std::min(request.digests.size(), *blocks * kParts / per_step);
  *blocks -= std::min(*blocks, search.steps * per_step / kParts);
  const std::span steps = std::span(request.digests).first(search.steps);
  for (const SessionVariant& variant : variants)
    search.parts.push_back(PartOf(variant, steps, search.disk));

  auto promise = std::make_unique<Promise>();
  promise->place = caller.account.Take(ShareKind::kLeases).ticket;
  {
    MutexLock lock(mu_);
    promise->ledger = LedgerOf(caller);
  }
  answer.promised.status = promise->place
                               ? Fill(caller, id, request, promoter, &search, promise.get())
                               : BlockStatus::kFull;
  if (answer.promised.status == BlockStatus::kFull)
    answer.promised.retry_after_ms = kRetryAfterFullMs;
  if (answer.promised.status != BlockStatus::kOk) return answer;
  for (Part& part : search.parts) {
    answer.promised.blocks.push_back(Describe(part));
    promise->waits += static_cast<size_t>(
        std::ranges::count(answer.promised.blocks.back().status, BlockStatus::kPending));
    promise->leases.push_back(std::move(part.got.lease));
  }
  promise->owner = {caller.engine_id, caller.account.holder().uid};
  promise->deadline = clock_.Now() + std::chrono::milliseconds(request.deadline_ms);
  promise->holders.push_back({caller.session, caller.tell});
  promise->ready.promise = id;
  answer.reads = promise->reads;
  answer.promised.promise = id;
  answer.promised.deadline_ms = request.deadline_ms;
  answer.promised.tokens = promise->tokens;
  MutexLock lock(mu_);
  promises_.emplace(id, std::move(promise));
  return answer;
}

wire::Promised PromiseTable::Join(const Caller& caller, const wire::Promise& request) {
  wire::Promised answer;
  answer.id = request.id;
  const TimePoint now = clock_.Now();
  MutexLock lock(mu_);
  const auto found = promises_.find(request.promise);
  if (found == promises_.end() ||
      found->second->owner != Owner{caller.engine_id, caller.account.holder().uid}) {
    return answer;
  }
  Promise& promise = *found->second;
  const auto holder = std::ranges::find(promise.holders, caller.session, &Holder::session);
  if (holder == promise.holders.end()) {
    promise.holders.push_back({caller.session, caller.tell});
  } else {
    ++holder->times;
  }
  promise.deadline =
      std::max(promise.deadline, now + std::chrono::milliseconds(request.deadline_ms));
  answer.status = BlockStatus::kOk;
  answer.promise = request.promise;
  answer.deadline_ms = static_cast<uint32_t>(
      std::chrono::ceil<std::chrono::milliseconds>(promise.deadline - now).count());
  answer.tokens = promise.tokens;
  return answer;
}

// ---- reading

void PromiseTable::StartReads(std::vector<Promoter::Prepared> reads, Promoter* promoter) {
  for (Promoter::Prepared& read : reads) promoter->Submit(std::move(read));
}

void PromiseTable::OnRead(LeaseId id, uint32_t part, uint32_t block, BlockStatus status) {
  News news;
  {
    MutexLock lock(mu_);
    const auto found = promises_.find(id);
    if (found == promises_.end()) return;
    Promise& promise = *found->second;
    promise.ready.blocks.push_back({part, block, status});
    --promise.waits;
    if (promise.waits == 0 || promise.ready.blocks.size() >= kReadyAtOnce) TakeNews(promise, &news);
  }
  Send(std::move(news));
}

void PromiseTable::TakeNews(Promise& promise, News* news) {
  if (promise.ready.blocks.empty()) return;
  for (const Holder& holder : promise.holders) {
    wire::Down down;
    down.promise_ready.push_back(promise.ready);
    news->emplace_back(holder.tell, std::move(down));
  }
  promise.ready.blocks.clear();
}

void PromiseTable::Send(News news) {
  for (auto& [tell, down] : news) tell(std::move(down));
}

// ---- ending

bool PromiseTable::Release(SessionId session, LeaseId promise) {
  std::unique_ptr<Promise> ended;  // its holds end without the lock
  MutexLock lock(mu_);
  const auto found = promises_.find(promise);
  if (found == promises_.end()) return false;
  std::vector<Holder>& holders = found->second->holders;
  const auto holder = std::ranges::find(holders, session, &Holder::session);
  if (holder == holders.end()) return false;
  if (--holder->times == 0) holders.erase(holder);
  if (!holders.empty()) return true;
  ended = std::move(found->second);
  promises_.erase(found);
  for (const Promoter::Prepared& read : ended->reads) Promoter::Cancel(read);
  return true;
}

void PromiseTable::EndSession(SessionId session) {
  std::vector<LeaseId> held;
  {
    MutexLock lock(mu_);
    for (const auto& [id, promise] : promises_) {
      if (std::ranges::find(promise->holders, session, &Holder::session) != promise->holders.end())
        held.push_back(id);
    }
  }
  for (const LeaseId id : held) {
    while (Release(session, id)) continue;
  }
}

void PromiseTable::Tick(TimePoint now) {
  News news;
  std::vector<std::unique_ptr<Promise>> ended;
  {
    MutexLock lock(mu_);
    absl::erase_if(promises_, [&](auto& entry) LARDER_NO_THREAD_SAFETY_ANALYSIS {
      Promise& promise = *entry.second;
      TakeNews(promise, &news);
      if (promise.deadline > now) return false;
      for (const Holder& holder : promise.holders) {
        wire::Down down;
        down.revocations.push_back({.leases = {entry.first},
                                    .reservations = {},
                                    .cause = wire::RevocationCause::kDeadline});
        news.emplace_back(holder.tell, std::move(down));
      }
      for (const Promoter::Prepared& read : promise.reads) Promoter::Cancel(read);
      ++expired_;
      ended.push_back(std::move(entry.second));
      return true;
    });
    absl::erase_if(ledgers_, [](const auto& entry) { return entry.second.expired(); });
  }
  Send(std::move(news));
}

std::shared_ptr<HoldLedger> PromiseTable::Under(const std::string& engine_id,
                                                const Shares::Account& account,
                                                LeaseId promise) const {
  MutexLock lock(mu_);
  const auto found = promises_.find(promise);
  if (found == promises_.end() || found->second->owner != Owner{engine_id, account.holder().uid})
    return nullptr;
  return found->second->ledger;
}

PromiseTable::Stats PromiseTable::stats() const {
  Stats stats;
  MutexLock lock(mu_);
  stats.promises = promises_.size();
  stats.expired = expired_;
  for (const auto& [owner, known] : ledgers_) {
    if (const std::shared_ptr<HoldLedger> ledger = known.lock()) stats.bytes += ledger->bytes();
  }
  return stats;
}

}  // namespace larder
