// A session's writing: reserve, publish (mapped: at once; staged: copied by the WorkerPool),
// abort.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sessions/session.h"

namespace larder {
namespace {

// Copies a payload that lies padded in staging into its extent, hashing what is stored: staging is
// memory that the client may write at any moment, so each byte is read from it once.
void CopyStaged(const CopyKernel& kernel, std::span<const std::byte> from, std::span<std::byte> to,
                SegmentTable* table) {
  uint64_t at = 0;
  for (Segment& segment : table->segments) {
    segment.xxh3 =
        kernel.CopyAndHash(to.subspan(at, segment.bytes), from.subspan(at, segment.bytes));
    const uint64_t end = at + segment.bytes;
    at = std::min<uint64_t>(RoundUp(end, kSegmentAlign), to.size());
    std::memset(to.data() + end, 0, at - end);
  }
  table->hashed = true;
  StoreFence();
}

// About the bytes that it takes while it waits.
size_t Weight(const wire::Publish& request) {
  size_t bytes = sizeof request;
  for (const wire::PublishBlock& block : request.blocks) {
    bytes += sizeof block + block.tokens.size() * sizeof(block.tokens[0]) +
             block.segments.segments.size() * sizeof(Segment);
  }
  return bytes;
}

void Note(std::string* message, const std::string& what) {
  if (message->empty()) *message = what;
}

}  // namespace

absl::Status CheckMetadata(size_t tokens, const SegmentTable& segments) {
  constexpr uint64_t kFixed = 64, kSegment = 24;
  const uint64_t beside = kFixed + tokens * sizeof(uint32_t) + segments.segments.size() * kSegment;
  const uint64_t room = RoundUp(segments.PayloadBytes().value(), kPageBytes);
  if (2 * beside <= room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokens and segments: they take about ", beside,
                                                 " bytes beside ", room,
                                                 " of the block; at most half of that"));
}

wire::Reserved AttachedSession::Handle(const wire::Reserve& request) {
  wire::Reserved answer;
  answer.id = request.id;
  if (write_mode_ == wire::WriteMode::kStream) {
    answer.status = BlockStatus::kUnsupported;
    answer.message = "this session writes by StoreBlocks: it has no sideband token";
    return answer;
  }
  if (Drained()) {
    answer.status = BlockStatus::kCancelled;
    answer.message = "larderd is draining";
    return answer;
  }
  // Charged first: what is refused must not have evicted anything.
  ByteCount total;
  for (const ByteCount bytes : request.bytes)
    total += ByteCount(RoundUp(bytes.value(), kPageBytes));
  Shares::Answer charge = account_.Take(ShareKind::kReservedBytes, total);
  BlockStore::ReserveResult result =
      deps_.store.Reserve(request.bytes, charge.admitted() ? total : ByteCount(0));
  answer.status = result.status;
  if (result.status == BlockStatus::kFull) answer.message = std::move(charge.why);
  if (result.status == BlockStatus::kInvalid) {
    answer.message = absl::StrCat("a block is 1 .. ", deps_.store.pool().slab_bytes().value(),
                                  " bytes (one slab)");
  }
  const ReservationId id{(id_.value << 32) | ++ids_};
  std::optional<uint32_t> word;
  if (answer.status == BlockStatus::kOk) word = TakeWord(id.value);
  if (!word) {
    if (answer.status == BlockStatus::kOk) {
      answer.status = BlockStatus::kFull;  // of words
      result.retry_after = std::chrono::milliseconds(20);
    }
    if (answer.status == BlockStatus::kFull)
      answer.retry_after_ms = RetryAfterMs(result.retry_after);
    return answer;
  }
  auto record = std::make_shared<ReservationRecord>();
  record->word = *word;
  record->deadline = deps_.clock.Now() + std::chrono::milliseconds(request.deadline_ms);
  next_deadline_ = std::min(next_deadline_, record->deadline);
  answer.reservation = id;
  answer.word = *word;
  for (size_t i = 0; i < result.reservation.size(); ++i) {
    const Extent& extent = result.reservation.extent(i);
    wire::ExtentGrant& grant = answer.extents.emplace_back();
    grant.bytes = result.reservation.bytes(i).value();
    if (write_mode_ != wire::WriteMode::kMapped) continue;  // the daemon keeps the places to itself
    grant.slab = static_cast<uint32_t>(extent.slab);
    grant.offset = extent.offset();
  }
  record->slots = result.reservation.size();
  {
    MutexLock lock(record->mu);
    record->charged = std::move(charge.ticket);
    record->reservation = std::move(result.reservation);
  }
  reservations_.emplace(id, std::move(record));
  return answer;
}

void AttachedSession::CloseReservation(ReservationId id) {
  const auto it = reservations_.find(id);
  if (it == reservations_.end()) return;
  ReservationRecord& record = *it->second;
  page_->Clear(record.word, id.value);
  {
    // Copies that wait in the queue find nothing held; those under way stay charged until they end.
    MutexLock lock(record.mu);
    record.reservation.Reset();
    record.charged.ShrinkTo(record.copying.value());
  }
  reservations_.erase(it);
}

void AttachedSession::Handle(const wire::Abort& request) {
  const auto it = reservations_.find(request.reservation);
  if (it == reservations_.end()) return;
  if (request.extents.empty()) return CloseReservation(request.reservation);
  {
    MutexLock lock(it->second->mu);
    for (const uint32_t i : request.extents) it->second->reservation.Return(i);
  }
  const std::shared_ptr<ReservationRecord> record = it->second;
  Recharge(request.reservation, *record);
}

BlockStatus AttachedSession::CheckBlock(const SessionVariant& variant,
                                        const wire::PublishBlock& block,
                                        std::string* message) const {
  if (block.tokens.size() != variant.block_tokens) {
    Note(message, absl::StrCat("tokens: ", block.tokens.size(), ", the variant has blocks of ",
                               variant.block_tokens));
    return BlockStatus::kInvalid;
  }
  if (absl::Status s = block.segments.Validate(variant.layers); !s.ok()) {
    Note(message, absl::StrCat("segments: ", s.message()));
    return BlockStatus::kInvalid;
  }
  if (absl::Status s = CheckMetadata(block.tokens.size(), block.segments); !s.ok()) {
    Note(message, std::string(s.message()));
    return BlockStatus::kInvalid;
  }
  for (const Segment& segment : block.segments.segments) {
    if (segment.codec == Codec::kIdentity) continue;
    Note(message, "segments.codecs: only IDENTITY is stored by this daemon");
    return BlockStatus::kUnsupported;
  }
  Digest digest = block.parent;
  for (size_t at = 0; at < block.tokens.size(); at += kStepTokens) {
    digest = NextDigest(digest, std::span(block.tokens).subspan(at, kStepTokens));
  }
  if (digest != block.digest) {
    Note(message, "digest: does not follow from parent and tokens");
    return BlockStatus::kInvalid;
  }
  return BlockStatus::kOk;
}

BlockStatus AttachedSession::PublishMapped(ReservationRecord& record, const SessionVariant& variant,
                                           const wire::PublishBlock& block, std::string* message) {
  if (const BlockStatus s = CheckBlock(variant, block, message); s != BlockStatus::kOk) return s;
  MutexLock lock(record.mu);
  const BlockStatus status =
      deps_.store.Publish(record.reservation, block.extent,
                          {variant.index, block.digest, block.parent, block.tokens, &block.segments,
                           block.content, writer_});
  if (status == BlockStatus::kInvalid)
    Note(message, "segments: their sum is not the bytes reserved");
  if (status == BlockStatus::kOk) {
    Offer(variant.index, block.digest);
    CountPut(variant, block);
  }
  return status;
}

BlockStatus AttachedSession::PublishStaged(ReservationRecord& record, const SessionVariant& variant,
                                           wire::PublishBlock& block, std::string* message) {
  if (const BlockStatus s = CheckBlock(variant, block, message); s != BlockStatus::kOk) return s;
  const std::shared_ptr<const StagingSegment> staging =
      deps_.staging.Get(process_->id, block.staging_id);
  const uint64_t bytes = block.segments.PayloadBytes().value();
  if (!staging || block.staging_offset > staging->bytes().size() ||
      bytes > staging->bytes().size() - block.staging_offset) {
    Note(message, "staging: no such segment, or the block reaches over its end");
    return BlockStatus::kInvalid;
  }
  // Ours alone while it is copied: other threads may copy into its neighbours, and the reservation
  // may end meanwhile.
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

BlockStatus AttachedSession::CopyInto(ExtentReservation& one, const StagingSegment& staging,
                                      const SessionVariant& variant, wire::PublishBlock& block) {
  const uint64_t bytes = block.segments.PayloadBytes().value();
  const BlockStore::NewBlock named{variant.index,   block.digest,  block.parent, block.tokens,
                                   &block.segments, block.content, writer_};
  EntryRef claim;
  const BlockStatus status = deps_.store.Claim(one, 0, named, &claim);
  if (status != BlockStatus::kOk) return status;
  const std::span<std::byte> to = deps_.store.Bytes(one.extent(0)).first(bytes);
  CopyStaged(deps_.copy_kernel, staging.bytes().subspan(block.staging_offset, bytes), to,
             &block.segments);
  const BlockStatus filled = deps_.store.Fill(one, 0, named, claim);
  if (filled != BlockStatus::kOk) return filled;
  Offer(variant.index, block.digest);
  deps_.counters.staged_bytes += bytes;
  CountPut(variant, block);
  return BlockStatus::kOk;
}

// A publish whose blocks several threads copy, or ask the disk about; the one that ends the last
// answers.
struct AttachedSession::StagedPublish {
  StagedPublish(wire::Publish the_request, SessionVariant the_variant,
                std::shared_ptr<ReservationRecord> the_record)
      : request(std::move(the_request)),
        variant(the_variant),
        record(std::move(the_record)),
        left(request.blocks.size()) {
    answer.id = request.id;
    answer.status.resize(request.blocks.size());
  }
  wire::Publish request;
  const SessionVariant variant;
  const std::shared_ptr<ReservationRecord> record;
  wire::Published answer;  // each status by the thread that copied its block
  std::atomic<size_t> next{0}, left;
  Mutex mu;
  std::string message LARDER_GUARDED_BY(mu);  // why the first of those refused was
};

void AttachedSession::CopyBlocks(StagedPublish& publish) {
  const size_t blocks = publish.request.blocks.size();
  for (size_t i = publish.next.fetch_add(1); i < blocks; i = publish.next.fetch_add(1)) {
    std::string message;
    wire::PublishBlock& block = publish.request.blocks[i];
    publish.answer.status[i] =
        write_mode_ == wire::WriteMode::kStaged
            ? PublishStaged(*publish.record, publish.variant, block, &message)
            : PublishMapped(*publish.record, publish.variant, block, &message);
    if (!message.empty()) {
      MutexLock lock(publish.mu);
      Note(&publish.message, message);
    }
    if (publish.left.fetch_sub(1) == 1) EndStaged(publish);
  }
}

void AttachedSession::EndStaged(StagedPublish& publish) {
  {
    MutexLock lock(publish.mu);
    publish.answer.message = publish.message;
  }
  CountPublished(publish.answer);
  {
    MutexLock lock(mu_);
    Recharge(publish.request.reservation, *publish.record);
  }
  wire::Down down;
  down.published.push_back(std::move(publish.answer));
  Send(std::move(down));
  MutexLock lock(mu_);
  --copies_;
  FinishIfDrained();
}

// False: too much is under way.
bool AttachedSession::SubmitStaged(wire::Publish request, const SessionVariant& variant,
                                   std::shared_ptr<ReservationRecord> record) {
  constexpr uint64_t kBytesPerThread = 1 << 20;  // below, waking another costs more than it copies
  const size_t weight = Weight(request);
  uint64_t bytes = 0;
  for (const wire::PublishBlock& block : request.blocks) {
    bytes += block.segments.PayloadBytes().value();
  }
  const size_t threads = std::min({deps_.workers.threads(), request.blocks.size(),
                                   static_cast<size_t>(bytes / kBytesPerThread)});
  const auto publish =
      std::make_shared<StagedPublish>(std::move(request), variant, std::move(record));
  const auto copy = [self = shared_from_this(), publish] { self->CopyBlocks(*publish); };
  if (!deps_.workers.Submit(account_.holder(), weight, copy)) return false;
  ++copies_;
  // Helpers: those that come too late, or not at all, leave the blocks to the others.
  for (size_t i = 1; i < threads; ++i) deps_.workers.Help(account_.holder(), copy);
  return true;
}

// Says of each block which content it is of, as far as that is known.  False: its writer was wrong.
bool AttachedSession::FindContents(wire::Publish* request) const {
  bool right = true;
  for (wire::PublishBlock& block : request->blocks) right = FindContent(&block) && right;
  return right;
}

bool AttachedSession::FindContent(wire::PublishBlock* block) const {
  const auto known = [&](const Digest& id) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    return std::ranges::find(contents_, id) != contents_.end();
  };
  if (known(block->parent)) {
    const bool agree = block->content == Digest() || block->content == block->parent;
    block->content = block->parent;
    return agree;
  }
  if (block->content != Digest()) return known(block->content);
  if (contents_.size() == 1) block->content = contents_.front();
  return true;
}

void AttachedSession::Handle(wire::Publish request, wire::Down* down) {
  const auto it = reservations_.find(request.reservation);
  const bool held = it != reservations_.end() && !it->second->revoked &&
                    request.blocks.size() <= it->second->slots;
  const char* const refused =
      !held ? "reservation: unknown, ended, revoked, or smaller than this"
      : request.variant >= variants_.size() ? "variant: not registered by this session"
      : !FindContents(&request)
          ? "content_id: not registered by this session, or another than the parent"
          : nullptr;
  wire::Published answer;
  answer.id = request.id;
  if (refused != nullptr) {
    answer.status.assign(request.blocks.size(),
                         held ? BlockStatus::kInvalid : BlockStatus::kNotHeld);
    answer.message = refused;
    CountPublished(answer);
    down->published.push_back(std::move(answer));
    return;
  }
  const std::shared_ptr<ReservationRecord> record = it->second;
  const SessionVariant variant = variants_[request.variant];
  // A store that asks the disk may wait for it, as this thread must not.
  const bool waits = write_mode_ == wire::WriteMode::kStaged || deps_.store.asks_disk();
  if (waits && !request.blocks.empty()) {
    const size_t blocks = request.blocks.size();
    if (SubmitStaged(std::move(request), variant, record)) return;  // answered when copied
    answer.status.assign(blocks, BlockStatus::kFull);
    answer.message = "too many blocks wait to be published: publish again later";
    CountPublished(answer);
    down->published.push_back(std::move(answer));
    return;
  }
  for (const wire::PublishBlock& block : request.blocks) {
    answer.status.push_back(PublishMapped(*record, variant, block, &answer.message));
  }
  CountPublished(answer);
  Recharge(request.reservation, *record);
  down->published.push_back(std::move(answer));
}

void AttachedSession::Recharge(ReservationId id, ReservationRecord& record) {
  ByteCount held;
  {
    MutexLock lock(record.mu);
    held = record.reservation.held_bytes() + record.copying;
    record.charged.ShrinkTo(held.value());
  }
  if (held == ByteCount(0)) CloseReservation(id);  // unless that was done meanwhile
}

void AttachedSession::CountPut(const SessionVariant& variant, const wire::PublishBlock& block) {
  deps_.counters.put_bytes += block.segments.PayloadBytes().value();
  deps_.counters.put_tokens += variant.block_tokens;
}

void AttachedSession::CountPublished(const wire::Published& answer) {
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
