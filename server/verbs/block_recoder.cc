#include "server/verbs/block_recoder.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "storage/check.h"
#include "storage/codec/block_codec.h"

namespace larder {
namespace {

using Outcome = BlockRecoder::Outcome;

SegmentRange All(const SegmentTable& table) {
  return {0, static_cast<uint32_t>(table.segments.size()), 0, table.PayloadBytes().value()};
}

// Returns the outcome as far as it follows from the segment table alone; kReady if the bytes are to
// be recoded.
Outcome Plan(Codec to, const SegmentTable& table, PayloadCodec& codec) {
  if (!table.encoded()) return to == Codec::kIdentity ? Outcome::kUnchanged : Outcome::kReady;
  if (to == Codec::kIdentity)
    return codec.CanDecode(table) ? Outcome::kReady : Outcome::kUnsupported;
  const auto is_so = [to](const Segment& segment) {
    return segment.codec == to || segment.codec == Codec::kIdentity;
  };
  // Segments in another codec are not recoded, because that codec may be lossy.
  return std::ranges::all_of(table.segments, is_so) ? Outcome::kUnchanged : Outcome::kUnsupported;
}

}  // namespace

void BlockRecoder::Prepare(Codec to, PayloadCodec& codec, Copy* copy) const {
  const BlockIndex::Held held = store_.HoldUntouched(copy->variant, copy->digest);
  copy->ref = held.ref;
  copy->outcome = held.full ? Outcome::kInUse : Outcome::kMissing;
  if (held.ref.value == 0 || (TiersOf(held.state) & TierBit(copy->tier)) == 0) return;
  PageBuffer payload(0);
  copy->outcome =
      copy->tier == Tier::kHost ? ReadHost(held, &payload, copy) : ReadDisk(held, &payload, copy);
  if (copy->outcome != Outcome::kReady) return;
  copy->pages_before = copy->pages_after = PagesFor(copy->header.table.PayloadBytes());
  copy->outcome = Recode(to, codec, payload.bytes(), copy);
}

// Copies into private memory first: a process that may write to the extent could change it after
// the check.
BlockRecoder::Outcome BlockRecoder::ReadHost(const BlockIndex::Held& held, PageBuffer* payload,
                                             Copy* copy) const {
  if (held.metadata == nullptr || !store_.EnsureHashed(held)) return Outcome::kMissing;
  copy->header.table = held.metadata->Table();
  const size_t bytes = held.metadata->payload_bytes().value();
  *payload = PageBuffer(held.extent.pages);
  std::memcpy(payload->bytes().data(), store_.Bytes(held.extent).data(), bytes);
  if (FirstDamaged(payload->bytes(), copy->header.table, All(copy->header.table)) >= 0) {
    store_.DropDamaged(held.ref);
    return Outcome::kMissing;
  }
  copy->header.parent = held.metadata->parent();
  copy->header.content = held.metadata->content();
  copy->writer = held.metadata->writer();
  copy->tokens.assign(held.metadata->tokens().begin(), held.metadata->tokens().end());
  if (const auto spec = store_.SpecOf(copy->variant)) copy->header.dtype = spec->dtype;
  return Outcome::kReady;
}

BlockRecoder::Outcome BlockRecoder::ReadDisk(const BlockIndex::Held& held, PageBuffer* payload,
                                             Copy* copy) const {
  copy->location = held.disk_location;
  const DiskAddress address{{store_.index().VariantId(copy->variant), copy->digest},
                            DiskLocation{held.disk_location}};
  std::optional<DiskTier::Description> known;
  if (!disk_.tier->Describe({&address, 1}, {&known, 1}).ok()) return Outcome::kFailed;
  if (!known) return Damaged(*copy);
  copy->header = std::move(known->header);
  copy->tokens = std::move(known->tokens);
  const SegmentTable& table = copy->header.table;
  *payload = PageBuffer(PagesFor(table.PayloadBytes()));
  switch (disk_.tier->Get(
      {.block = address, .header = &copy->header, .range = All(table), .to = payload->bytes()})) {
    case DiskTier::GetStatus::kOk:
      return Outcome::kReady;
    case DiskTier::GetStatus::kMissing:
    case DiskTier::GetStatus::kDamaged:
      return Damaged(*copy);
    case DiskTier::GetStatus::kFailed:
      break;
  }
  return Outcome::kFailed;
}

// Drops the damaged copy if the block is only on disk.  If the record is being written or has just
// been written again, the description that was read may be out of date; that is no damage.
BlockRecoder::Outcome BlockRecoder::Damaged(const Copy& copy) const {
  // IsWriting is called before LookAt, because a block has its new location before its writing
  // ends.
  const bool writing = disk_.work->spiller().IsWriting(copy.variant, copy.digest);
  const BlockIndex::Held now = store_.index().LookAt(copy.ref);
  if (writing || now.disk_location != copy.location) return Outcome::kInUse;
  if (now.state == BlockState::kDisk) store_.DropDamaged(copy.ref, Tier::kDisk);
  return Outcome::kMissing;
}

BlockRecoder::Outcome BlockRecoder::Recode(Codec to, PayloadCodec& codec,
                                           std::span<const std::byte> payload, Copy* copy) const {
  SegmentTable& table = copy->header.table;
  if (const Outcome plan = Plan(to, table, codec); plan != Outcome::kReady) return plan;
  if (to == Codec::kIdentity) {
    PageBuffer raw(PagesFor(table.Decoded().PayloadBytes()));
    SegmentTable decoded;
    if (!codec.Decode(payload, table, raw.bytes(), &decoded).ok()) {
      store_.DropDamaged(copy->ref, copy->tier);
      return Outcome::kMissing;
    }
    copy->bytes = std::move(raw);
    table = std::move(decoded);
  } else {
    const size_t bytes = table.PayloadBytes().value();
    PageBuffer encoded(PagesFor(ByteCount(bytes)));
    std::optional<SegmentTable> smaller = codec.Encode(
        to, payload.first(bytes), table, ElementBytes(copy->header.dtype), encoded.bytes());
    if (!smaller || PagesFor(smaller->PayloadBytes()) >= copy->pages_before)
      return Outcome::kUnchanged;
    copy->bytes = std::move(encoded);
    table = *std::move(smaller);
  }
  copy->pages_after = PagesFor(table.PayloadBytes());
  return Outcome::kReady;
}

void BlockRecoder::Write(std::span<Copy> copies, PayloadCodec& codec) const {
  std::vector<Copy*> on_disk;
  for (Copy& copy : copies) {
    if (copy.outcome != Outcome::kReady) continue;
    if (copy.tier == Tier::kHost) {
      copy.outcome = WriteHost(copy);
    } else {
      on_disk.push_back(&copy);
    }
  }
  if (!on_disk.empty()) WriteDisk(on_disk, codec);
}

// Returns kReady if the block has another hold now, or if it has just left HOST.
BlockRecoder::Outcome BlockRecoder::WriteHost(Copy& copy) const {
  if (!InHost(store_.index().LookAt(copy.ref).state)) return Outcome::kMissing;
  const ByteCount bytes = copy.header.table.PayloadBytes();
  BlockStore::ReserveResult room = store_.Reserve({&bytes, 1}, store_.pool().total_bytes());
  if (room.status != BlockStatus::kOk) return Outcome::kNoRoom;
  std::memcpy(store_.Bytes(room.reservation.extent(0)).data(), copy.bytes.bytes().data(),
              bytes.value());
  auto metadata = BlockMetadata::Make(copy.header.parent, copy.tokens, copy.header.table,
                                      copy.header.content, copy.writer);
  return store_.ReplaceInHost(copy.ref, room.reservation, std::move(metadata)) ? Outcome::kChanged
                                                                               : Outcome::kReady;
}

// Copies of blocks that are in use may stay kReady.
void BlockRecoder::WriteDisk(std::span<Copy*> copies, PayloadCodec& codec) const {
  Spiller& spiller = disk_.work->spiller();
  std::vector<std::pair<VariantIndex, Digest>> names;
  std::vector<Copy*> mine;
  for (Copy* const copy : copies) {
    if (!spiller.Claim(copy->variant, copy->digest)) continue;
    names.emplace_back(copy->variant, copy->digest);
    if (disk_.work->promoter().Exclude(copy->ref, copy->location)) {
      mine.push_back(copy);
      continue;
    }
    const BlockIndex::Held now = store_.index().LookAt(copy->ref);
    if ((TiersOf(now.state) & TierBit(Tier::kDisk)) == 0) {
      copy->outcome = Outcome::kMissing;
    } else if (now.disk_location != copy->location) {
      copy->outcome = Outcome::kInUse;  // it was rewritten meanwhile
    }
  }
  if (!mine.empty()) Replace(mine, codec);
  spiller.Unclaim(names);
}

void BlockRecoder::Replace(std::span<Copy* const> mine, PayloadCodec& codec) const {
  std::vector<DiskTier::NewBlock> news;
  for (const Copy* const copy : mine) {
    const size_t bytes = copy->header.table.PayloadBytes().value();
    news.push_back({.header = &copy->header,
                    .tokens = copy->tokens,
                    .payload = copy->bytes.bytes().first(bytes),
                    .instead_of = DiskLocation{copy->location}});
  }
  std::vector<DiskTier::PutResult> results(news.size());
  Put(news, results);
  std::vector<DiskAddress> gone;
  for (size_t i = 0; i < mine.size(); ++i) {
    Copy& copy = *mine[i];
    const bool put = results[i].status == DiskTier::PutStatus::kOk;
    const bool failed = results[i].status == DiskTier::PutStatus::kFailed;
    const DiskLocation place = put ? results[i].location : DiskLocation::kNone;
    if (put) disk_.tier->SetOwner(place, copy.ref.value);
    const bool written =
        disk_.work->promoter().Readmit(copy.ref, static_cast<uint64_t>(place), codec);
    // Erases the old record, or the new one if the block does not use it.
    if (put) gone.push_back({copy.header.key, written ? DiskLocation{copy.location} : place});
    copy.outcome = failed ? Outcome::kFailed : put ? Outcome::kMissing : Outcome::kNoRoom;
    if (written) copy.outcome = Outcome::kChanged;
  }
  // A record that could not be erased keeps its space until a later call erases it.  If the daemon
  // restarts before that, it finds one of the two records.
  if (!gone.empty()) (void)disk_.tier->Erase(gone);
}

// If the disk is too full for some of the blocks, evicts others from it and tries once more to
// write those for which it was too full.
void BlockRecoder::Put(std::span<const DiskTier::NewBlock> blocks,
                       std::span<DiskTier::PutResult> results) const {
  disk_.tier->Put(blocks, results);
  std::vector<DiskTier::NewBlock> left;
  std::vector<size_t> places;
  ByteCount bytes;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (results[i].status != DiskTier::PutStatus::kNoRoom) continue;
    left.push_back(blocks[i]);
    places.push_back(i);
    bytes += ByteCount(blocks[i].payload.size());
  }
  if (left.empty()) return;
  disk_.work->spiller().MakeRoom(bytes);
  std::vector<DiskTier::PutResult> again(left.size());
  disk_.tier->Put(left, again);
  for (size_t i = 0; i < left.size(); ++i) results[places[i]] = again[i];
}

void BlockRecoder::Release(std::span<Copy> copies) const {
  std::vector<EntryRef> held;
  for (Copy& copy : copies) {
    if (const EntryRef ref = std::exchange(copy.ref, EntryRef{}); ref.value != 0)
      held.push_back(ref);
    copy.bytes = PageBuffer(0);
  }
  store_.Unhold(held);
}

}  // namespace larder
