#include "server/sessions/session_reservations.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/format/payload_cursor.h"
#include "storage/tiering/tier_worker.h"

namespace larder {
namespace {

constexpr std::chrono::milliseconds kRetryAfterNoWord{20};

// Copies a payload from a staging segment into its extent, and hashes the bytes that are stored.
// The client may write to the staging segment at any moment, so each byte is read from there only
// once.
void CopyStaged(const CopyKernel& kernel, std::span<const std::byte> from, std::span<std::byte> to,
                SegmentTable* table) {
  SegmentCursor at;
  PayloadWriter out(to);
  for (Segment& segment : table->segments)
    segment.xxh3 = kernel.CopyAndHash(out.Next(segment.bytes), at.Next(from, segment.bytes));
  table->hashed = true;
  StoreFence();
}

// Returns about how many bytes of memory a publish takes while it waits.
size_t Weight(const wire::Publish& request) {
  size_t bytes = sizeof request;
  for (const wire::PublishBlock& block : request.blocks) {
    bytes += sizeof block + block.tokens.size() * sizeof(block.tokens[0]) +
             block.segments.segments.size() * sizeof(Segment);
  }
  return bytes;
}

void SetIfEmpty(std::string* message, const std::string& what) {
  if (message->empty()) *message = what;
}

}  // namespace

// A publish whose blocks one or several threads copy, or ask the disk about.
struct SessionReservations::Job {
  Job(wire::Publish the_request, SessionVariant the_variant, std::shared_ptr<Record> the_record)
      : request(std::move(the_request)),
        variant(the_variant),
        record(std::move(the_record)),
        left(request.blocks.size()) {
    answer.id = request.id;
    answer.status.resize(request.blocks.size());
  }
  wire::Publish request;
  const SessionVariant variant;
  const std::shared_ptr<Record> record;
  wire::Published answer;  // the thread that handles a block writes its status
  std::atomic<size_t> next{0}, left;
  Mutex mu;
  std::string message LARDER_GUARDED_BY(mu);  // the first reason that a thread found
};

bool SessionReservations::LeaveOutTaken(const wire::Reserve& request, std::vector<ByteCount>* sizes,
                                        wire::Reserved* answer) const {
  *sizes = request.bytes;
  if (request.digests.empty()) return true;
  const std::optional<SessionVariant> variant = registered_.Find(request.variant);
  if (!variant) {
    answer->status = BlockStatus::kInvalid;
    answer->message = "variant: not registered by this session";
    return false;
  }
  std::vector<BlockIndex::Presence> known(request.digests.size());
  deps_.store.index().Lookup(variant->index, request.digests, known);
  sizes->clear();
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i].tiers == 0) {
      sizes->push_back(request.bytes[i]);
    } else {
      answer->taken.push_back(static_cast<uint32_t>(i));
    }
  }
  if (!sizes->empty()) return true;
  answer->status = BlockStatus::kDuplicate;
  return false;
}

wire::Reserved SessionReservations::Reserve(const wire::Reserve& request) {
  wire::Reserved answer;
  answer.id = request.id;
  if (context_.write_mode == wire::WriteMode::kStream) {
    answer.status = BlockStatus::kUnsupported;
    answer.message = "this session writes by StoreBlocks: it has no sideband token";
    return answer;
  }
  if (context_.Drained()) {
    answer.status = BlockStatus::kCancelled;
    answer.message = "larderd is draining";
    return answer;
  }
  std::vector<ByteCount> sizes;
  if (!LeaveOutTaken(request, &sizes, &answer)) return answer;
  // Charged before memory is reserved, because a request that is refused must not have evicted
  // blocks.
  ByteCount total;
  for (const ByteCount bytes : sizes) total += ByteCount(RoundUp(bytes.value(), kPageBytes));
  Shares::Answer charge = context_.account.Take(ShareKind::kReservedBytes, total);
  BlockStore::ReserveResult result =
      deps_.store.Reserve(sizes, charge.admitted() ? total : ByteCount(0));
  answer.status = result.status;
  if (result.status == BlockStatus::kFull) answer.message = std::move(charge.why);
  if (result.status == BlockStatus::kInvalid) {
    answer.message = absl::StrCat("a block is 1 .. ", deps_.store.pool().slab_bytes().value(),
                                  " bytes (one slab)");
  }
  const ReservationId id{context_.NewId()};
  std::optional<uint32_t> word;
  if (answer.status == BlockStatus::kOk) word = context_.page->AllocateWord(id.value);
  if (!word) {
    if (answer.status == BlockStatus::kOk) {
      answer.status = BlockStatus::kFull;  // no word is free
      result.retry_after = kRetryAfterNoWord;
    }
    if (answer.status == BlockStatus::kFull)
      answer.retry_after_ms = RetryAfterMs(result.retry_after);
    return answer;
  }
  auto record = std::make_shared<Record>();
  record->word = *word;
  record->deadline = deps_.clock.Now() + std::chrono::milliseconds(request.deadline_ms);
  answer.reservation = id;
  answer.word = *word;
  for (size_t i = 0; i < result.reservation.size(); ++i) {
    const Extent& extent = result.reservation.extent(i);
    wire::ExtentGrant& grant = answer.extents.emplace_back();
    grant.bytes = result.reservation.bytes(i).value();
    // The daemon does not tell a staged session where its extents are.
    if (context_.write_mode != wire::WriteMode::kMapped) continue;
    grant.slab = static_cast<uint32_t>(extent.slab);
    grant.offset = extent.offset();
  }
  record->slots = result.reservation.size();
  {
    MutexLock lock(record->mu);
    record->charged = std::move(charge.ticket);
    record->reservation = std::move(result.reservation);
  }
  MutexLock lock(mu_);
  next_deadline_ = std::min(next_deadline_, record->deadline);
  reservations_.emplace(id, std::move(record));
  return answer;
}

std::shared_ptr<SessionReservations::Record> SessionReservations::Find(ReservationId id) const {
  MutexLock lock(mu_);
  const auto it = reservations_.find(id);
  return it == reservations_.end() ? nullptr : it->second;
}

void SessionReservations::Close(ReservationId id) {
  MutexLock lock(mu_);
  CloseLocked(id);
}

void SessionReservations::CloseLocked(ReservationId id) {
  const auto it = reservations_.find(id);
  if (it == reservations_.end()) return;
  Record& record = *it->second;
  context_.page->Clear(record.word, id.value);
  {
    // Copies that wait in the queue will find no extent; those under way stay charged until their
    // publish ends.
    MutexLock lock(record.mu);
    record.reservation.Reset();
    record.charged.ShrinkTo(record.copying.value());
  }
  reservations_.erase(it);
}

void SessionReservations::Abort(const wire::Abort& request) {
  const std::shared_ptr<Record> record = Find(request.reservation);
  if (record == nullptr) return;
  if (request.extents.empty()) return Close(request.reservation);
  {
    MutexLock lock(record->mu);
    for (const uint32_t i : request.extents) record->reservation.Return(i);
  }
  Recharge(request.reservation, *record);
}

bool SessionReservations::Tick(TimePoint now, std::vector<ReservationId>* revoked) {
  std::vector<ReservationId> ended;
  bool any = false;
  MutexLock lock(mu_);
  if (now < next_deadline_) return false;
  next_deadline_ = TimePoint::max();
  for (auto& [id, record] : reservations_) {
    if (record->revoked) continue;
    if (record->deadline > now) {
      next_deadline_ = std::min(next_deadline_, record->deadline);
      continue;
    }
    any = true;
    ++deps_.counters.reservations_expired;
    if (context_.write_mode != wire::WriteMode::kMapped) {
      ended.push_back(id);  // the client does not write to these extents
      continue;
    }
    record->revoked = true;
    context_.page->Clear(record->word, id.value);
    revoked->push_back(id);
  }
  for (const ReservationId id : ended) CloseLocked(id);
  return any;
}

bool SessionReservations::idle() const {
  MutexLock lock(mu_);
  return reservations_.empty() && jobs_ == 0;
}

void SessionReservations::End(bool clean, SessionHoldings* touchable) {
  absl::flat_hash_map<ReservationId, std::shared_ptr<Record>> ended;
  {
    MutexLock lock(mu_);
    ended = std::exchange(reservations_, {});
  }
  if (clean || context_.write_mode != wire::WriteMode::kMapped) return;
  for (const auto& [id, record] : ended) {
    MutexLock record_lock(record->mu);
    touchable->charges.push_back(std::move(record->charged));
    touchable->extents.push_back(std::move(record->reservation));
  }
}

BlockStatus SessionReservations::CheckBlock(const SessionVariant& variant,
                                            const wire::PublishBlock& block,
                                            std::string* message) const {
  if (block.tokens.size() != variant.block_tokens) {
    SetIfEmpty(message, absl::StrCat("tokens: ", block.tokens.size(),
                                     ", the variant has blocks of ", variant.block_tokens));
    return BlockStatus::kInvalid;
  }
  if (absl::Status s = block.segments.Validate(variant.layers); !s.ok()) {
    SetIfEmpty(message, absl::StrCat("segments: ", s.message()));
    return BlockStatus::kInvalid;
  }
  if (absl::Status s = CheckMetadata(block.tokens.size(), block.segments); !s.ok()) {
    SetIfEmpty(message, std::string(s.message()));
    return BlockStatus::kInvalid;
  }
  for (const Segment& segment : block.segments.segments) {
    if (segment.codec == Codec::kIdentity) continue;
    SetIfEmpty(message, "segments.codecs: only IDENTITY is stored by this daemon");
    return BlockStatus::kUnsupported;
  }
  Digest digest = block.parent;
  for (size_t at = 0; at < block.tokens.size(); at += kStepTokens) {
    digest = NextDigest(digest, std::span(block.tokens).subspan(at, kStepTokens));
  }
  if (digest != block.digest) {
    SetIfEmpty(message, "digest: does not follow from parent and tokens");
    return BlockStatus::kInvalid;
  }
  return BlockStatus::kOk;
}

BlockStatus SessionReservations::PublishMapped(Record& record, const SessionVariant& variant,
                                               const wire::PublishBlock& block,
                                               std::string* message) {
  if (const BlockStatus s = CheckBlock(variant, block, message); s != BlockStatus::kOk) return s;
  MutexLock lock(record.mu);
  const BlockStatus status =
      deps_.store.Publish(record.reservation, block.extent,
                          {variant.index, block.digest, block.parent, block.tokens, &block.segments,
                           block.content, context_.writer});
  if (status == BlockStatus::kInvalid)
    SetIfEmpty(message, "segments: their sum is not the bytes reserved");
  if (status == BlockStatus::kOk) {
    OfferToDisk(variant.index, block.digest);
    CountPut(variant, block);
  }
  return status;
}

BlockStatus SessionReservations::PublishStaged(Record& record, const SessionVariant& variant,
                                               wire::PublishBlock& block, std::string* message) {
  if (const BlockStatus s = CheckBlock(variant, block, message); s != BlockStatus::kOk) return s;
  const std::shared_ptr<const StagingSegment> staging =
      deps_.staging.Get(context_.process->id, block.staging_id);
  const uint64_t bytes = block.segments.PayloadBytes().value();
  if (!staging || block.staging_offset > staging->bytes().size() ||
      bytes > staging->bytes().size() - block.staging_offset) {
    SetIfEmpty(message, "staging: no such segment, or the block extends beyond its end");
    return BlockStatus::kInvalid;
  }
  // The extent is split off the reservation while it is filled: other threads may fill other
  // extents of the reservation, and the reservation may end meanwhile.
  ExtentReservation one;
  ByteCount held;
  {
    MutexLock lock(record.mu);
    one = record.reservation.Split(block.extent);
    held = one.held_bytes();
    record.copying += held;
  }
  const BlockStatus status = CopyInto(one, *staging, variant, block);
  one.Reset();
  MutexLock lock(record.mu);
  record.copying -= held;
  return status;
}

BlockStatus SessionReservations::CopyInto(ExtentReservation& one, const StagingSegment& staging,
                                          const SessionVariant& variant,
                                          wire::PublishBlock& block) {
  const uint64_t bytes = block.segments.PayloadBytes().value();
  const BlockStore::NewBlock named{variant.index,   block.digest,  block.parent,   block.tokens,
                                   &block.segments, block.content, context_.writer};
  EntryRef claim;
  const BlockStatus status = deps_.store.Claim(one, 0, named, &claim);
  if (status != BlockStatus::kOk) return status;
  const std::span<std::byte> to = deps_.store.Bytes(one.extent(0)).first(bytes);
  CopyStaged(deps_.copy_kernel, staging.bytes().subspan(block.staging_offset, bytes), to,
             &block.segments);
  const BlockStatus filled = deps_.store.Fill(one, 0, named, claim);
  if (filled != BlockStatus::kOk) return filled;
  OfferToDisk(variant.index, block.digest);
  deps_.counters.staged_bytes += bytes;
  CountPut(variant, block);
  return BlockStatus::kOk;
}

void SessionReservations::Run(Job& job) {
  const size_t blocks = job.request.blocks.size();
  for (size_t i = job.next.fetch_add(1); i < blocks; i = job.next.fetch_add(1)) {
    std::string message;
    wire::PublishBlock& block = job.request.blocks[i];
    job.answer.status[i] = context_.write_mode == wire::WriteMode::kStaged
                               ? PublishStaged(*job.record, job.variant, block, &message)
                               : PublishMapped(*job.record, job.variant, block, &message);
    if (!message.empty()) {
      MutexLock lock(job.mu);
      SetIfEmpty(&job.message, message);
    }
    if (job.left.fetch_sub(1) == 1) Answer(job);
  }
}

void SessionReservations::Answer(Job& job) {
  {
    MutexLock lock(job.mu);
    job.answer.message = job.message;
  }
  CountPublished(job.answer);
  Recharge(job.request.reservation, *job.record);
  wire::Down down;
  down.published.push_back(std::move(job.answer));
  context_.outlet.Send(std::move(down));
  {
    MutexLock lock(mu_);
    --jobs_;
  }
  on_answered_();
}

bool SessionReservations::Submit(wire::Publish request, const SessionVariant& variant,
                                 std::shared_ptr<Record> record) {
  constexpr uint64_t kBytesPerThread = 1 << 20;  // for less, waking a thread is not worth it
  const size_t weight = Weight(request);
  uint64_t bytes = 0;
  for (const wire::PublishBlock& block : request.blocks) {
    bytes += block.segments.PayloadBytes().value();
  }
  const size_t threads = std::min({deps_.workers.threads(), request.blocks.size(),
                                   static_cast<size_t>(bytes / kBytesPerThread)});
  const auto job = std::make_shared<Job>(std::move(request), variant, std::move(record));
  const auto run = [this, session = context_.KeepAlive(), job] { Run(*job); };
  {
    MutexLock lock(mu_);
    ++jobs_;
  }
  if (!deps_.workers.Submit(context_.account.holder(), weight, run)) {
    MutexLock lock(mu_);
    --jobs_;
    return false;
  }
  // The job does not need its helpers: blocks that a helper does not take are left to the other
  // threads.
  for (size_t i = 1; i < threads; ++i) deps_.workers.Help(context_.account.holder(), run);
  return true;
}

void SessionReservations::Publish(wire::Publish request, wire::Down* down) {
  const std::shared_ptr<Record> record = Find(request.reservation);
  const bool held = record != nullptr && !record->revoked && request.blocks.size() <= record->slots;
  const std::optional<SessionVariant> variant = registered_.Find(request.variant);
  const char* const refused =
      !held      ? "reservation: unknown, ended, revoked, or smaller than this"
      : !variant ? "variant: not registered by this session"
      : !registered_.SetContents(&request)
          ? "content_id: another than the parent, or not among the contents that this session "
            "registered last (register it again)"
          : nullptr;
  wire::Published answer;
  answer.id = request.id;
  const size_t blocks = request.blocks.size();
  // A store that asks the disk may wait for it, and this thread must not wait.
  const bool waits = context_.write_mode == wire::WriteMode::kStaged || deps_.store.asks_disk();
  if (refused != nullptr) {
    answer.status.assign(blocks, held ? BlockStatus::kInvalid : BlockStatus::kNotHeld);
    answer.message = refused;
  } else if (waits && blocks > 0) {
    if (Submit(std::move(request), *variant, record)) return;  // its last thread answers
    answer.status.assign(blocks, BlockStatus::kFull);
    answer.message = "too many blocks wait to be published: publish again later";
  } else {
    for (const wire::PublishBlock& block : request.blocks) {
      answer.status.push_back(PublishMapped(*record, *variant, block, &answer.message));
    }
    Recharge(request.reservation, *record);
  }
  CountPublished(answer);
  down->published.push_back(std::move(answer));
}

void SessionReservations::Recharge(ReservationId id, Record& record) {
  ByteCount held;
  {
    MutexLock lock(record.mu);
    held = record.reservation.held_bytes() + record.copying;
    record.charged.ShrinkTo(held.value());
  }
  if (held == ByteCount(0)) Close(id);  // does nothing if it was closed meanwhile
}

void SessionReservations::OfferToDisk(VariantIndex variant, const Digest& digest) {
  if (deps_.disk != nullptr) deps_.disk->spiller().Offer(context_.id, variant, digest);
}

void SessionReservations::CountPut(const SessionVariant& variant, const wire::PublishBlock& block) {
  deps_.counters.put_bytes += block.segments.PayloadBytes().value();
  deps_.counters.put_tokens += variant.block_tokens;
}

void SessionReservations::CountPublished(const wire::Published& answer) {
  for (const BlockStatus status : answer.status) {
    switch (status) {
      case BlockStatus::kOk:
        ++deps_.counters.blocks_published;
        break;
      case BlockStatus::kDuplicate:
        ++deps_.counters.blocks_duplicate;
        break;
      default:
        ++deps_.counters.blocks_refused;
        break;
    }
  }
}

}  // namespace larder
