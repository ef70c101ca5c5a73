#include "server/sessions/byte_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/format/record.h"
#include "storage/status_macros.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

// ---- receiver

absl::Status BlockReceiver::Open(ContentSpec content, const VariantSpec& variant,
                                 const std::string& engine_id) {
  content.tenant = deps_.tenant;
  LARDER_RETURN_IF_ERROR(content.Validate());
  LARDER_RETURN_IF_ERROR(variant.Validate());
  variant_ = variant;
  if (const absl::Status s = Register(content, engine_id); absl::IsResourceExhausted(s)) {
    refused_ = std::string(s.message());  // blocks are then answered FULL
  } else if (!s.ok()) {
    return s;
  }
  seed_ = content.Id();
  writer_ = WriterOf(account_, engine_id);
  open_ = true;
  return absl::OkStatus();
}

absl::Status BlockReceiver::Register(const ContentSpec& content, const std::string& engine_id) {
  if (!engine_id.empty()) {
    if (auto r = deps_.instances.Register(engine_id, {&content, 1}, {&variant_, 1}, &account_);
        !r.ok()) {
      return r.status();
    }
  }
  LARDER_ASSIGN_OR_RETURN(index_, deps_.instances.Number(variant_, &account_));
  return absl::OkStatus();
}

void BlockReceiver::Fail(BlockStatus status, const std::string& why) {
  status_.back() = status;
  if (message_.empty()) message_ = absl::StrCat("block ", status_.size() - 1, ": ", why);
  reservation_ = {};
  charged_.Reset();
  begun_ = true;
}

absl::Status BlockReceiver::Begin(wire::StoreBlock block) {
  if (!open_)
    return absl::InvalidArgumentError("content and variant: required in the first message");
  if (block_)
    return absl::InvalidArgumentError(absl::StrCat("block ", status_.size() - 1, " is cut short"));
  if (block.tokens.size() != variant_.block_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: the block has ", block.tokens.size(),
                                                   " tokens, but the variant has blocks of ",
                                                   variant_.block_tokens));
  }
  LARDER_RETURN_IF_ERROR(block.segments.Validate(variant_.layers));
  LARDER_RETURN_IF_ERROR(CheckMetadata(block.tokens.size(), block.segments));
  if (!block.segments.hashed)
    return absl::InvalidArgumentError("segments.xxh3: required on a byte stream");
  if (!block.parent) block.parent = seed_;
  status_.push_back(BlockStatus::kOk);
  digests_.push_back(Chain(*block.parent, block.tokens).back());
  missing_bytes_ = block.segments.StoredBytes().value();
  segment_ = 0;
  out_.reset();
  missing_of_segment_ = {};
  begun_ = false;
  const auto encoded = [](const Segment& segment) { return segment.codec != Codec::kIdentity; };
  const bool unsupported = std::ranges::any_of(block.segments.segments, encoded);
  block_ = std::move(block);
  if (unsupported) {
    Fail(BlockStatus::kUnsupported, "only IDENTITY is stored by this daemon");
  } else if (!refused_.empty()) {
    Fail(BlockStatus::kFull, refused_);
  }
  return absl::OkStatus();
}

// Called for a block's first byte, not by Begin: a reservation may evict another client's block, so
// a client must send bytes before it can cause that.
void BlockReceiver::Reserve() {
  begun_ = true;
  const ByteCount payload = block_->segments.PayloadBytes();
  const ByteCount pages(RoundUp(payload.value(), kPageBytes));
  Shares::Answer charge = account_.Take(ShareKind::kReservedBytes, pages);
  BlockStore::ReserveResult result =
      deps_.store.Reserve({&payload, 1}, charge.admitted() ? pages : ByteCount(0));
  if (result.status != BlockStatus::kOk) {
    Fail(result.status,
         charge.why.empty() ? "the pool has no free memory now: retry later" : charge.why);
    return;
  }
  reservation_ = std::move(result.reservation);
  out_.emplace(deps_.store.Bytes(reservation_.extent(0)));
  charged_ = std::move(charge.ticket);
}

absl::Status BlockReceiver::Append(std::span<const std::byte> data) {
  if (data.empty()) return absl::OkStatus();
  if (!block_) return absl::InvalidArgumentError("data: no block was begun");
  if (data.size() > missing_bytes_)
    return absl::InvalidArgumentError("data: more bytes than the block's segment table states");
  missing_bytes_ -= data.size();
  if (!begun_) Reserve();
  while (!data.empty() && reservation_.open(0)) {
    if (missing_of_segment_.empty())
      missing_of_segment_ = out_->Next(block_->segments.segments[segment_++].bytes);
    const size_t n = std::min(data.size(), missing_of_segment_.size());
    std::memcpy(missing_of_segment_.data(), data.data(), n);
    missing_of_segment_ = missing_of_segment_.subspan(n);
    data = data.subspan(n);
  }
  if (missing_bytes_ == 0) Finish();
  return absl::OkStatus();
}

void BlockReceiver::Finish() {
  const wire::StoreBlock block = *std::exchange(block_, std::nullopt);
  if (!reservation_.open(0)) return;  // the block has failed, and its bytes were discarded
  const SegmentRange all{0, static_cast<uint32_t>(block.segments.segments.size()), 0,
                         block.segments.PayloadBytes().value()};
  if (FirstDamaged(deps_.store.Bytes(reservation_.extent(0)), block.segments, all) >= 0) {
    ++deps_.counters.blocks_damaged_in_transit;
    Fail(BlockStatus::kDamaged, "the bytes received do not match their hash");
    return;
  }
  const BlockStatus status = deps_.store.Publish(
      reservation_, 0,
      {index_, digests_.back(), *block.parent, block.tokens, &block.segments, seed_, writer_});
  if (status != BlockStatus::kOk && status != BlockStatus::kDuplicate) {
    Fail(status, "the store refused the block");
    return;
  }
  ++(status == BlockStatus::kOk ? deps_.counters.blocks_published
                                : deps_.counters.blocks_duplicate);
  if (status == BlockStatus::kOk) {
    deps_.counters.put_bytes += block.segments.PayloadBytes().value();
    deps_.counters.put_tokens += block.tokens.size();
  }
  if (status == BlockStatus::kOk && deps_.disk != nullptr)
    deps_.disk->spiller().Offer({}, index_, digests_.back());
  status_.back() = status;
  reservation_ = {};
  charged_.Reset();
}

absl::Status BlockReceiver::Close() {
  if (!block_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("block ", status_.size() - 1, " is cut short"));
}

// ---- sender

BlockSender::BlockSender(SessionDeps& deps, Shares::Account account, VariantSpec variant,
                         std::vector<Digest> digests, uint32_t first_layer, uint32_t layers)
    : deps_(deps),
      account_(std::move(account)),
      variant_(std::move(variant)),
      digests_(std::move(digests)),
      first_layer_(first_layer),
      layers_(layers),
      variant_id_(variant_.Id()),
      index_(deps.store.index().FindVariant(variant_id_)) {}

void BlockSender::Refill() {
  window_ = {};
  leased_.Reset();
  window_begin_ = next_key_;
  const size_t n = std::min(kWindow, digests_.size() - next_key_);
  if (index_) {
    const auto acquire = [&](ByteCount budget) {
      window_ = deps_.store.Acquire(*index_, std::span(digests_).subspan(next_key_, n), budget);
    };
    acquire(ByteCount(account_.Room(ShareKind::kLeasedBytes)));
    leased_ = account_.Take(ShareKind::kLeasedBytes, window_.lease.held_bytes()).ticket;
    if (!leased_) acquire(ByteCount(0));  // another call has used up the share meanwhile
  } else {
    window_.blocks.resize(n);
  }
}

void BlockSender::StartKey(Piece* piece) {
  const BlockIndex::Held& held = window_.blocks[next_key_ - window_begin_];
  piece->start = true;
  piece->key = static_cast<uint32_t>(next_key_++);
  if (held.ref.value == 0 || held.metadata == nullptr) {
    ++deps_.counters.blocks_missing;
    piece->status = held.full ? BlockStatus::kFull : BlockStatus::kMissing;
    return;
  }
  SegmentRange range;
  const bool hashed = deps_.store.EnsureHashed(held);
  table_ = held.metadata->Table();
  payload_ = deps_.store.Bytes(held.extent);
  if (table_.encoded()) {
    piece->status = Decode(held);
    if (piece->status == BlockStatus::kDamaged) deps_.store.DropDamaged(held.ref);
    if (piece->status != BlockStatus::kOk) return;
  }
  if (!table_.Range(first_layer_, layers_, &range).ok()) {
    piece->status = BlockStatus::kInvalid;
    return;
  }
  if (!hashed || (!held.metadata->encoded() && !deps_.store.Check(held, range))) {
    deps_.store.DropDamaged(held.ref);
    piece->status = BlockStatus::kDamaged;
    return;
  }
  ++deps_.counters.blocks_hit;
  deps_.counters.got_host_bytes += range.end - range.begin;
  deps_.counters.got_host_tokens += variant_.block_tokens;
  RecordHeader header;
  header.key = {variant_id_, digests_[piece->key]};
  header.parent = held.metadata->parent();
  header.content = held.metadata->content();
  header.block_tokens = variant_.block_tokens;
  header.first_layer = variant_.first_layer;
  header.layout = variant_.layout;
  header.dtype = variant_.dtype;
  header.table = table_;
  piece->record_header = EncodeRecordHeader(header);
  piece->status = BlockStatus::kOk;
  piece->first_segment = segment_ = range.first;
  piece->segments = range.count;
  segments_end_ = range.first + range.count;
  at_ = SegmentCursor(range.begin);
  left_of_segment_ = {};
}

// Decodes into an extent of the pool, so that the pool's limit covers it, and from a private copy,
// because a process that may write to the pool could change the bytes while they are decoded.
BlockStatus BlockSender::Decode(const BlockIndex::Held& held) {
  const std::vector<std::byte> stored(payload_.begin(), payload_.end());
  const ByteCount bytes = held.metadata->raw_payload_bytes();
  raw_ = {};
  const ByteCount pages(RoundUp(bytes.value(), kPageBytes));
  raw_charged_.Reset();
  raw_charged_ = account_.Take(ShareKind::kReservedBytes, pages).ticket;
  if (!raw_charged_) return BlockStatus::kFull;
  BlockStore::ReserveResult room = deps_.store.Reserve({&bytes, 1}, pages);
  if (room.status != BlockStatus::kOk) return room.status;
  raw_ = std::move(room.reservation);
  payload_ = deps_.store.Bytes(raw_.extent(0));
  if (!codec_.CanDecode(table_)) return BlockStatus::kUnsupported;
  const std::span<std::byte> to = deps_.store.Bytes(raw_.extent(0));
  return codec_.Decode(stored, table_, to, &table_).ok() ? BlockStatus::kOk : BlockStatus::kDamaged;
}

bool BlockSender::Next(Piece* piece) {
  *piece = {};
  if (left_of_segment_.empty() && segment_ < segments_end_)
    left_of_segment_ = at_.Next(payload_, table_.segments[segment_++].bytes);
  if (!left_of_segment_.empty()) {
    const size_t n = std::min<size_t>(wire::kDataBytesMax, left_of_segment_.size());
    piece->data = left_of_segment_.first(n);
    left_of_segment_ = left_of_segment_.subspan(n);
    deps_.counters.fetched_bytes += n;
    return true;
  }
  if (next_key_ == digests_.size()) {
    window_ = {};
    leased_.Reset();
    return false;
  }
  if (next_key_ == window_begin_ + window_.blocks.size()) Refill();
  StartKey(piece);
  return true;
}

}  // namespace larder
