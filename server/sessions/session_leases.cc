#include "server/sessions/session_leases.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "server/sessions/promise_table.h"
#include "storage/tiering/tier_worker.h"

namespace larder {
namespace {

// With read mode copied: the most keys of one acquire that name a block which an earlier key has
// named.  The lease holds and charges that block once, so without this limit a short message could
// queue thousands of copies and be charged for one block.
constexpr size_t kRepeatsMax = 128;

bool Accepts(const wire::Acquire& request, const BlockMetadata& metadata) {
  for (uint32_t i = 0; i < metadata.segment_count(); ++i) {
    const Codec codec = metadata.segment(i).codec;
    if (codec != Codec::kIdentity &&
        std::ranges::find(request.accepted_codecs, codec) == request.accepted_codecs.end()) {
      return false;
    }
  }
  return true;
}

// Returns the blocks that a lease holds, each once.
std::vector<HoldLedger::Block> ChargedBlocks(const BlockStore::AcquireResult& held) {
  std::vector<HoldLedger::Block> blocks;
  for (const BlockIndex::Held& block : held.blocks) {
    if (block.ref.value != 0 && !block.repeated)
      blocks.push_back({block.ref, block.extent.bytes()});
  }
  return blocks;
}

void RefuseAll(BlockStatus status, wire::Grant* grant) {
  for (wire::BlockGrant& block : grant->blocks) block = RefusedBlock(status);
}

}  // namespace

// What is kept of an acquire until its blocks arrive from disk.
struct SessionLeases::Promotion {
  wire::Acquire request;  // without its digests
  SessionVariant variant;
  LeaseId lease;
  TimePoint begun;
};

SessionLeases::SessionLeases(SessionContext& context, const SessionRegistrations& registered)
    : context_(context),
      deps_(context.deps),
      registered_(registered),
      fillings_(context, *this),
      sampler_(context.deps.check_one_in,
               uint64_t{std::random_device{}()} << 32 | context.id.value) {}

// ---- granting

wire::Grant SessionLeases::Acquire(const wire::Acquire& request) {
  wire::Grant grant;
  grant.id = request.id;
  grant.blocks.resize(request.digests.size());
  const std::optional<SessionVariant> variant = registered_.Find(request.variant);
  const bool reads = request.what != wire::AcquireWhat::kPromise;
  if (!variant) {
    RefuseAll(BlockStatus::kInvalid, &grant);
    return grant;
  }
  if (context_.Drained()) {
    RefuseAll(BlockStatus::kCancelled, &grant);
    return grant;
  }
  if (context_.read_mode == wire::ReadMode::kStream && reads) {
    RefuseAll(BlockStatus::kUnsupported, &grant);
    return grant;
  }
  const LeaseId id{context_.NewId()};
  MutexLock lock(mu_);
  std::vector<EntryRef> crowded;
  BlockStore::AcquireResult held = Hold(request, variant->index, TiersToHold(), &crowded);
  Promoter::Prepared promotion;
  if (!PlanPromotion(request, *variant, held, id, &promotion)) {
    // The promoter does not take the reads now, so blocks that are only on disk are treated as
    // missing.
    held = {};
    Uncrowd(std::exchange(crowded, {}));
    held = Hold(request, variant->index, HoldWhat::kHost, &crowded);
  }
  Grant(request, *variant, id, held, std::move(promotion), &grant);
  if (!crowded.empty()) {
    if (grant.lease == LeaseId{}) {
      Uncrowd(crowded);
    } else {
      leases_.at(id).crowded = std::move(crowded);
    }
  }
  return grant;
}

HoldWhat SessionLeases::TiersToHold() const {
  const bool disk =
      context_.tiers && deps_.disk != nullptr && deps_.disk->promoter().worth_asking();
  return disk ? HoldWhat::kAnyTier : HoldWhat::kHost;
}

BlockStore::AcquireResult SessionLeases::Hold(const wire::Acquire& request, VariantIndex variant,
                                              HoldWhat what, std::vector<EntryRef>* crowded) {
  const ByteCount room(context_.account.Room(ShareKind::kLeasedBytes));
  // What the ledger has need not be charged (Charge).
  const std::shared_ptr<HoldLedger> ledger = LedgerOf(request);
  const ByteCount budget = ledger == nullptr ? room : room + ledger->bytes();
  const auto may_crowd = [&](EntryRef block) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    uint32_t& mine = crowded_[block.value];
    if (mine >= kCrowdedMax) return false;
    ++mine;
    crowded->push_back(block);
    return true;
  };
  BlockStore::AcquireResult held =
      deps_.store.Acquire(variant, request.digests, budget, what, may_crowd);
  if (ledger == nullptr || held.lease.held_bytes() <= room) return held;
  LedgerHold known;
  if (held.lease.held_bytes() - ledger->AddKnown(ChargedBlocks(held), &known) <= room) return held;
  // The ledger's bytes are of other blocks.
  held = {};
  Uncrowd(*crowded);
  crowded->clear();
  return deps_.store.Acquire(variant, request.digests, room, what, may_crowd);
}

void SessionLeases::Uncrowd(std::span<const EntryRef> blocks) {
  for (const EntryRef block : blocks) {
    const auto mine = crowded_.find(block.value);
    if (--mine->second == 0) crowded_.erase(mine);
  }
}

void SessionLeases::Grant(const wire::Acquire& request, const SessionVariant& variant, LeaseId id,
                          BlockStore::AcquireResult& held, Promoter::Prepared promotion,
                          wire::Grant* grant) {
  Record record;
  if (ByCopies(request)) {
    record.window = CopyWindow::Of(deps_.staging.Get(context_.process->id, request.staging_id),
                                   request.staging_offset, request.staging_bytes);
    if (record.window == nullptr) return RefuseAll(BlockStatus::kInvalid, grant);
    record.copied = true;
  }
  bool any = false;  // a block is given now or will be given later
  size_t tables = 0;
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    grant->blocks[i] =
        GrantOne(request, variant, held.blocks[i], tables < wire::Acquire::kTablesMax);
    const BlockStatus status = grant->blocks[i].status;
    tables += grant->blocks[i].table ? 1 : 0;
    any = any || status == BlockStatus::kOk || status == BlockStatus::kPending;
    if (status == BlockStatus::kFull) grant->retry_after_ms = kRetryAfterFullMs;
  }
  if (grant->retry_after_ms > 0) context_.account.CountRefused(ShareKind::kLeasedBytes);
  if (!any) return;  // destroying `held` returns its blocks
  const bool charged = Charge(request, held, &record);
  // A session without a page reads nothing in place, so its lease needs no word.
  std::optional<uint32_t> word = 0;
  if (context_.page && charged) word = context_.page->AllocateWord(id.value);
  if (!charged || !word) {
    RefuseAll(BlockStatus::kFull, grant);
    grant->retry_after_ms = kRetryAfterFullMs;
    return;
  }
  grant->lease = id;
  grant->deadline_ms = request.deadline_ms;
  grant->word = *word;
  record.deadline = deps_.clock.Now() + std::chrono::milliseconds(request.deadline_ms);
  record.word = *word;
  record.request = request.id;
  if (promotion) promotions_to_start_.push_back(promotion);
  record.promotion = std::move(promotion);
  record.promise = request.what == wire::AcquireWhat::kPromise;
  if (record.copied) {
    PlanCopies(request, variant, held, id, record, grant);
  } else {
    PlanDecoding(request, variant, held, id, &record, grant);
  }
  record.lease = std::move(held.lease);
  next_deadline_ = std::min(next_deadline_, record.deadline);
  leases_.emplace(id, std::move(record));
}

bool SessionLeases::Charge(const wire::Acquire& request, const BlockStore::AcquireResult& held,
                           Record* record) const {
  record->place = context_.account.Take(ShareKind::kLeases).ticket;
  if (!record->place) return false;
  ByteCount bytes = held.lease.held_bytes();
  if (const std::shared_ptr<HoldLedger> ledger = LedgerOf(request))
    bytes -= ledger->AddKnown(ChargedBlocks(held), &record->under_promise);
  record->bytes = context_.account.Take(ShareKind::kLeasedBytes, bytes).ticket;
  return static_cast<bool>(record->bytes);
}

std::shared_ptr<HoldLedger> SessionLeases::LedgerOf(const wire::Acquire& request) const {
  if (!request.promised_lease) return nullptr;
  return deps_.promises.Under(context_.engine_id, context_.account, request.promised_lease);
}

bool SessionLeases::ByCopies(const wire::Acquire& request) const {
  return context_.read_mode == wire::ReadMode::kCopied &&
         request.what != wire::AcquireWhat::kPromise;
}

wire::BlockGrant SessionLeases::GrantOne(const wire::Acquire& request,
                                         const SessionVariant& variant,
                                         const BlockIndex::Held& held, bool encoded) {
  if (held.ref.value == 0)
    return RefusedBlock(held.full ? BlockStatus::kFull : BlockStatus::kMissing);
  wire::BlockGrant grant;
  grant.status = BlockStatus::kOk;
  grant.tier = OnDiskAlone(held.state) ? Tier::kDisk : Tier::kHost;
  if (request.what == wire::AcquireWhat::kPromise) return grant;
  if (OnDiskAlone(held.state)) {
    grant.status = held.repeated ? BlockStatus::kFull : BlockStatus::kPending;
    return grant;
  }
  if (held.metadata == nullptr) return grant;
  if (held.metadata->encoded() && !(encoded && Accepts(request, *held.metadata))) {
    grant.status = !context_.tiers ? BlockStatus::kUnsupported
                   : held.repeated ? BlockStatus::kFull
                                   : BlockStatus::kPending;
    return grant;
  }
  const bool whole =
      request.first_layer == 0 && (request.layers == 0 || request.layers == variant.layers);
  // Only the first key that names a block is sampled here.  A block that is read by copies is
  // sampled when its copy is planned (AddToFilling).
  const bool sampled = !ByCopies(request) && !held.repeated && sampler_.Next();
  SegmentRange range{0, held.metadata->segment_count(), 0, held.metadata->payload_bytes().value()};
  if (!whole && !held.metadata->Table().Range(request.first_layer, request.layers, &range).ok()) {
    grant.status = BlockStatus::kInvalid;
    return grant;
  }
  if (request.what == wire::AcquireWhat::kView && sampled) {
    ++deps_.counters.host_checks;
    if (!deps_.store.Check(held, range)) {
      deps_.store.DropDamaged(held.ref);
      grant.status = BlockStatus::kDamaged;
      return grant;
    }
  }
  const bool checked_there =
      sampled && request.what == wire::AcquireWhat::kBytes && held.metadata->hashed();
  if (checked_there) ++deps_.counters.host_checks;
  if (request.want_tables || held.metadata->encoded() || checked_there) {
    grant.table = held.metadata->Table(range);
  }
  grant.extent.slab = static_cast<uint32_t>(held.extent.slab);
  grant.extent.offset = held.extent.offset() + range.begin;
  grant.extent.bytes = range.end - range.begin;
  return grant;
}

// Does not count CANCELLED and UNSUPPORTED blocks, nor PENDING ones, which may be counted when they
// are answered.
void SessionLeases::Count(const wire::Acquire& request, const wire::Grant& grant) {
  uint64_t hits = 0, missing = 0, bytes = 0;
  for (const wire::BlockGrant& block : grant.blocks) {
    switch (block.status) {
      case BlockStatus::kOk:
        ++hits;
        bytes += block.extent.bytes;
        break;
      case BlockStatus::kPending:
      case BlockStatus::kCancelled:
      case BlockStatus::kUnsupported:
        break;
      default:
        ++missing;
        break;
    }
  }
  if (missing > 0) deps_.counters.blocks_missing += missing;
  if (hits == 0) return;
  deps_.counters.blocks_hit += hits;
  deps_.counters.got_host_bytes += bytes;
  deps_.counters.got_host_tokens += hits * registered_.Find(request.variant)->block_tokens;
}

// ---- what a grant leaves to be done

void SessionLeases::PlanDecoding(const wire::Acquire& request, const SessionVariant& variant,
                                 const BlockStore::AcquireResult& held, LeaseId lease,
                                 Record* record, wire::Grant* grant) {
  const auto filling = std::make_shared<Filling>(deps_.store, request, variant, lease);
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const BlockIndex::Held& block = held.blocks[i];
    if (grant->blocks[i].status != BlockStatus::kPending || !InHost(block.state)) continue;
    const ByteCount bytes(PagesFor(block.metadata->raw_payload_bytes()) * kPageBytes);
    Shares::Answer more = context_.account.Take(ShareKind::kLeasedBytes, bytes);
    if (!more.admitted() || !filling->holds.Add(block.ref)) {
      grant->blocks[i] = RefusedBlock(BlockStatus::kFull);
      grant->blocks[i].tier = {};
      grant->retry_after_ms = kRetryAfterFullMs;
      continue;
    }
    record->bytes.Merge(std::move(more.ticket));
    FillingBlock& wanted = filling->blocks.emplace_back();
    wanted.key = i;
    wanted.held = block;
  }
  if (!filling->blocks.empty()) fillings_to_start_.push_back(filling);
}

void SessionLeases::PlanCopies(const wire::Acquire& request, const SessionVariant& variant,
                               const BlockStore::AcquireResult& held, LeaseId lease,
                               const Record& record, wire::Grant* grant) {
  const auto filling = std::make_shared<Filling>(deps_.store, request, variant, lease);
  filling->window = record.window;
  size_t repeats = 0;
  filling->blocks.reserve(std::min(held.blocks.size(), held.lease.size() + kRepeatsMax));
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const BlockIndex::Held& block = held.blocks[i];
    wire::BlockGrant& answer = grant->blocks[i];
    const bool encoded = answer.status == BlockStatus::kPending && InHost(block.state);
    if (answer.status != BlockStatus::kOk && !encoded) continue;
    repeats += block.repeated ? 1 : 0;
    if (repeats > kRepeatsMax || !AddToFilling(i, block, answer, *filling)) {
      answer = RefusedBlock(BlockStatus::kFull);
      answer.tier = {};
      grant->retry_after_ms = kRetryAfterFullMs;
      continue;
    }
    const Tier tier = answer.tier;
    answer = RefusedBlock(BlockStatus::kPending);
    answer.tier = tier;
  }
  if (!filling->blocks.empty()) fillings_to_start_.push_back(filling);
}

bool SessionLeases::AddToFilling(size_t key, const BlockIndex::Held& held,
                                 const wire::BlockGrant& grant, Filling& filling) {
  if (!filling.holds.Add(held.ref)) return false;
  FillingBlock& block = filling.blocks.emplace_back();
  block.key = key;
  block.held = held;
  if (grant.status != BlockStatus::kOk) return true;  // to be decoded
  const uint64_t begin = grant.extent.offset - held.extent.offset();
  SegmentRange range{0, held.metadata->segment_count(), begin, begin + grant.extent.bytes};
  const bool whole = begin == 0 && grant.extent.bytes == held.metadata->payload_bytes().value();
  if (!whole)  // cannot fail: GrantOne has found the same range
    (void)held.metadata->Table().Range(filling.request.first_layer, filling.request.layers, &range);
  block.as_it_is = range;
  block.check = sampler_.Next();
  block.wants_table = grant.table.has_value();
  block.grant.status = grant.status;
  block.grant.tier = grant.tier;
  return true;
}

void SessionLeases::StartReads() {
  std::vector<Promoter::Prepared> promotions;
  std::vector<std::shared_ptr<Filling>> fillings;
  {
    MutexLock lock(mu_);
    promotions.swap(promotions_to_start_);
    fillings.swap(fillings_to_start_);
  }
  for (Promoter::Prepared& job : promotions) deps_.disk->promoter().Submit(std::move(job));
  for (std::shared_ptr<Filling>& filling : fillings) fillings_.Start(std::move(filling));
}

bool SessionLeases::Listens(LeaseId lease) {
  MutexLock lock(mu_);
  const auto record = leases_.find(lease);
  return record != leases_.end() && !record->second.revoked;
}

bool SessionLeases::Wants(LeaseId lease) {
  MutexLock lock(mu_);
  const auto record = leases_.find(lease);
  return record != leases_.end() && !record->second.revoked && !record->second.cancelled;
}

bool SessionLeases::Keep(LeaseId lease, ExtentReservation* decoded) {
  MutexLock lock(mu_);
  const auto record = leases_.find(lease);
  if (record == leases_.end() || record->second.revoked) return false;
  record->second.decoded.push_back(std::move(*decoded));
  return true;
}

void SessionLeases::OnCopied(LeaseId lease) {
  MutexLock lock(mu_);
  const auto record = leases_.find(lease);
  // Blocks that had to be read from disk for the lease may still arrive, to be copied into its
  // window.
  if (record != leases_.end() && !record->second.promotion) LetGo(record->second);
}

void SessionLeases::LetGo(Record& record) {
  record.bytes.Reset();
  record.under_promise.Reset();
  record.lease.Reset();
  record.window.reset();
  record.deadline = TimePoint::max();
}

// ---- reading from disk

bool SessionLeases::PlanPromotion(const wire::Acquire& request, const SessionVariant& variant,
                                  const BlockStore::AcquireResult& held, LeaseId lease,
                                  Promoter::Prepared* prepared) {
  if (deps_.disk == nullptr) return true;
  Promoter::Job job;
  job.session = context_.id;
  job.variant = variant.index;
  job.remaining = ByteCount(request.remaining_bytes);
  for (size_t i = 0; i < held.blocks.size(); ++i) {
    const BlockIndex::Held& block = held.blocks[i];
    if (block.ref.value == 0 || block.repeated || !OnDiskAlone(block.state)) continue;
    job.blocks.push_back(
        {i, block.ref, request.digests[i], block.disk_location, block.extent.bytes()});
  }
  if (job.blocks.empty()) return true;
  auto promotion =
      std::make_shared<Promotion>(Promotion{request, variant, lease, deps_.clock.Now()});
  promotion->request.digests.clear();
  job.ready = [this, session = context_.self, promotion = std::move(promotion)](
                  const Promoter::Wanted& wanted, BlockStatus status, const BlockIndex::Held& now) {
    if (const std::shared_ptr<const void> alive = session.lock())
      OnPromoted(*promotion, wanted.key, status, now);
  };
  *prepared = deps_.disk->promoter().Prepare(std::move(job));
  return *prepared != nullptr;
}

void SessionLeases::OnPromoted(const Promotion& promotion, size_t key, BlockStatus status,
                               const BlockIndex::Held& held) {
  if (promotion.request.what == wire::AcquireWhat::kPromise) return;  // no client waits for it
  wire::BlockGrant block;
  std::shared_ptr<Filling> copy;
  {
    MutexLock lock(mu_);
    const auto lease = leases_.find(promotion.lease);
    if (lease == leases_.end() || lease->second.revoked) return;
    block.status = status;
    if (status == BlockStatus::kOk)
      block = GrantOne(promotion.request, promotion.variant, held, /*encoded=*/true);
    if (lease->second.copied)
      copy = PlanPromoted(promotion, key, held, lease->second.window, &block);
  }
  if (copy != nullptr) return fillings_.Start(std::move(copy));
  // No job will decode the block for this lease, but the client may ask for it again.
  if (block.status == BlockStatus::kPending) block.status = BlockStatus::kFull;
  block.tier = Tier::kDisk;  // where the acquire found the block
  const auto number = static_cast<uint32_t>(key);
  wire::Down down;
  if (block.status == BlockStatus::kOk) {
    ++deps_.counters.blocks_from_disk;
    deps_.counters.got_disk_bytes += block.extent.bytes;
    deps_.counters.got_disk_tokens += promotion.variant.block_tokens;
    deps_.counters.latencies.disk_read.Observe(deps_.clock.Now() - promotion.begun);
    down.ready.push_back({promotion.request.id, number, std::move(block)});
  } else {
    if (block.status != BlockStatus::kCancelled) ++deps_.counters.blocks_missing;
    down.failed.push_back({promotion.request.id, number, block.status});
  }
  context_.outlet.Send(std::move(down));
}

std::shared_ptr<Filling> SessionLeases::PlanPromoted(const Promotion& promotion, size_t key,
                                                     const BlockIndex::Held& held,
                                                     std::shared_ptr<CopyWindow> window,
                                                     wire::BlockGrant* block) {
  const bool encoded = block->status == BlockStatus::kPending;
  if (block->status != BlockStatus::kOk && !encoded) return nullptr;
  if (window == nullptr) {  // the lease's deadline has passed
    block->status = BlockStatus::kCancelled;
    return nullptr;
  }
  const auto filling =
      std::make_shared<Filling>(deps_.store, promotion.request, promotion.variant, promotion.lease);
  filling->window = std::move(window);
  filling->read_since = promotion.begun;
  if (AddToFilling(key, held, *block, *filling)) return filling;
  block->status = BlockStatus::kFull;
  return nullptr;
}

// ---- ending

void SessionLeases::Release(std::span<const LeaseId> leases) {
  MutexLock lock(mu_);
  for (const LeaseId id : leases) {
    if (!id) continue;
    if (!leases_.contains(id)) {
      if (!deps_.promises.Release(context_.id, id)) ++deps_.counters.unknown_releases;
      continue;
    }
    ReleaseLocked(id);
  }
}

void SessionLeases::ReleaseLocked(LeaseId id) {
  const auto it = leases_.find(id);
  if (context_.page) context_.page->Clear(it->second.word, id.value);
  Uncrowd(it->second.crowded);
  leases_.erase(it);
}

void SessionLeases::Acknowledge(std::span<const LeaseId> leases) {
  MutexLock lock(mu_);
  for (const LeaseId id : leases) {
    // For example, a promise has ended at its deadline already.
    if (leases_.contains(id)) ReleaseLocked(id);
  }
}

void SessionLeases::Cancel(std::span<const uint64_t> requests) {
  if (requests.empty()) return;
  // One walk over the leases, however many requests a message cancels.
  const absl::flat_hash_set<uint64_t> cancelled(requests.begin(), requests.end());
  MutexLock lock(mu_);
  for (auto& [id, record] : leases_) {
    if (!cancelled.contains(record.request)) continue;
    record.cancelled = true;
    if (record.promotion) Promoter::Cancel(record.promotion);
  }
}

bool SessionLeases::Tick(TimePoint now, std::vector<LeaseId>* revoked) {
  std::vector<LeaseId> promises;
  bool any = false;
  MutexLock lock(mu_);
  if (now < next_deadline_) return false;
  next_deadline_ = TimePoint::max();
  for (auto& [id, record] : leases_) {
    if (record.revoked) continue;
    if (record.deadline > now) {
      next_deadline_ = std::min(next_deadline_, record.deadline);
      continue;
    }
    any = true;
    if (record.promotion) Promoter::Cancel(record.promotion);
    if (record.copied) {
      // The client reads nothing in the pool through this lease, so the lease is not revoked.  The
      // record stays, so that the PENDING blocks are still answered.
      record.cancelled = true;
      LetGo(record);
      continue;
    }
    // Unless the lease is a promise, the process may still read in place, so the holds stay for
    // now.
    record.revoked = true;
    if (record.promise) promises.push_back(id);
    if (context_.page) context_.page->Clear(record.word, id.value);
    revoked->push_back(id);
    ++deps_.counters.leases_expired;
  }
  for (const LeaseId id : promises) ReleaseLocked(id);  // the client reads no bytes for them
  return any;
}

bool SessionLeases::empty() const {
  MutexLock lock(mu_);
  return leases_.empty();
}

void SessionLeases::End(SessionHoldings* touchable) {
  Records ended;
  {
    MutexLock lock(mu_);
    ended = std::exchange(leases_, {});
  }
  for (auto& [id, record] : ended) {
    if (record.copied) continue;  // the process cannot access its blocks
    touchable->charges.push_back(std::move(record.place));
    touchable->charges.push_back(std::move(record.bytes));
    touchable->under_promises.push_back(std::move(record.under_promise));
    touchable->leases.push_back(std::move(record.lease));
    std::ranges::move(record.decoded, std::back_inserter(touchable->extents));
  }
}

}  // namespace larder
