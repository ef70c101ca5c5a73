#include "server/sessions/session_fillings.h"

#include <algorithm>
#include <cstring>

#include "storage/disk/page_buffer.h"
#include "storage/format/payload_cursor.h"

namespace larder {
namespace {

// The answers for copied blocks are sent after about this many bytes or blocks, so that the client
// can use blocks while this thread copies the next ones.
constexpr uint64_t kAnswerBytes = 1 << 20;
constexpr size_t kAnswerBlocks = 64;
constexpr uint64_t kJobBytes = 16 << 20;  // then a job gives its thread back
constexpr size_t kWaitingMax = 64;

// Copies a range of a payload.  Returns false if a segment does not match its hash.  A writer that
// maps the pool may change the payload meanwhile, so the bytes that are hashed are those that are
// copied.
bool CopyChecked(const CopyKernel& kernel, const BlockMetadata& metadata, const SegmentRange& range,
                 std::span<const std::byte> from, std::span<std::byte> to) {
  SegmentCursor at;
  PayloadWriter out(to);
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    const Segment& segment = metadata.segment(i);
    const std::span<std::byte> place = out.Next(segment.bytes);
    if (kernel.CopyAndHash(place, at.Next(from, segment.bytes)) != segment.xxh3) return false;
  }
  return true;
}

void AddAnswer(const Filling& filling, size_t key, wire::BlockGrant grant, wire::Down* down) {
  const auto number = static_cast<uint32_t>(key);
  if (grant.status == BlockStatus::kOk) {
    down->ready.push_back({filling.request.id, number, std::move(grant)});
  } else {
    down->failed.push_back({filling.request.id, number, grant.status, grant.extent.bytes});
  }
}

}  // namespace

std::shared_ptr<CopyWindow> CopyWindow::Of(std::shared_ptr<const StagingSegment> segment,
                                           uint64_t offset, uint64_t bytes) {
  if (segment == nullptr) return nullptr;
  const uint64_t size = segment->bytes().size();
  if (offset % kSegmentAlign != 0 || offset > size || bytes > size - offset) return nullptr;
  return std::shared_ptr<CopyWindow>(new CopyWindow(std::move(segment), offset, offset + bytes));
}

std::optional<CopyWindow::Place> CopyWindow::Take(uint64_t bytes) {
  MutexLock lock(mu_);
  if (bytes > end_ - next_) return std::nullopt;
  const uint64_t offset = next_;
  next_ = std::min(end_, offset + PayloadStride(bytes));
  return Place{offset, segment_->bytes().subspan(offset, bytes)};
}

// ---- jobs

void SessionFillings::Start(std::shared_ptr<Filling> filling) {
  if (filling->window == nullptr) {
    if (!Submit(filling)) GiveUp(*filling);
    return;
  }
  bool first = false;
  {
    MutexLock lock(mu_);
    first = !std::exchange(copying_, true);
    if (!first && waiting_.size() < kWaitingMax) {
      filling->waits = context_.account.Take(ShareKind::kMessageBytes, filling->bytes()).ticket;
      if (filling->waits) {
        waiting_.push_back(std::move(filling));
        return;
      }
    }
  }
  first ? RunCopies(std::move(filling)) : GiveUp(*filling);
}

bool SessionFillings::Submit(const std::shared_ptr<Filling>& filling) {
  filling->waits.Reset();
  return deps_.workers.Submit(context_.account.holder(), filling->bytes(),
                              [this, session = context_.KeepAlive(), filling] {
                                filling->window != nullptr ? Copy(filling) : Decode(filling);
                              });
}

void SessionFillings::GiveUp(Filling& filling) {
  filling.holds.Release();
  for (; filling.next < filling.blocks.size(); ++filling.next) {
    AnswerDecoded(filling, filling.blocks[filling.next].key, RefusedBlock(BlockStatus::kFull), {});
  }
}

// ---- decoding

void SessionFillings::Decode(const std::shared_ptr<Filling>& filling) {
  PayloadCodec codec;
  ByteCount done;
  while (filling->next < filling->blocks.size()) {
    done += filling->blocks[filling->next].held.metadata->raw_payload_bytes();
    DecodeNext(*filling, codec);
    const bool more = filling->next < filling->blocks.size();
    if (done >= ByteCount(kJobBytes) && more && Submit(filling)) return;
  }
}

void SessionFillings::DecodeNext(Filling& filling, PayloadCodec& codec) {
  const FillingBlock& block = filling.blocks[filling.next++];
  wire::BlockGrant grant = RefusedBlock(BlockStatus::kCancelled);
  ExtentReservation extent;
  if (leases_.Wants(filling.lease)) {
    const ByteCount bytes = block.held.metadata->raw_payload_bytes();
    BlockStore::ReserveResult reserved =
        deps_.store.Reserve({&bytes, 1}, deps_.store.pool().total_bytes());
    grant.status = reserved.status;
    extent = std::move(reserved.reservation);
    if (grant.status == BlockStatus::kOk) {
      const Extent& to = extent.extent(0);
      grant = DecodeTo(filling.request, block.held, deps_.store.Bytes(to), codec);
      grant.extent.slab = static_cast<uint32_t>(to.slab);
      grant.extent.offset += to.offset();
    }
  }
  filling.ReleaseAtEnd();
  AnswerDecoded(filling, block.key, std::move(grant), std::move(extent));
}

// Decodes from a copy: a writer that maps the pool could change the block while it is decoded.
wire::BlockGrant SessionFillings::DecodeTo(const wire::Acquire& request,
                                           const BlockIndex::Held& held, std::span<std::byte> to,
                                           PayloadCodec& codec) {
  SegmentTable table = held.metadata->Table();
  const PageBuffer stored(held.extent.pages);
  std::memcpy(stored.bytes().data(), deps_.store.Bytes(held.extent).data(), stored.bytes().size());
  if (!codec.CanDecode(table)) return RefusedBlock(BlockStatus::kUnsupported);
  if (!codec.Decode(stored.bytes(), table, to, &table).ok()) {
    deps_.store.DropDamaged(held.ref);
    return RefusedBlock(BlockStatus::kDamaged);
  }
  SegmentRange range;
  if (!table.Range(request.first_layer, request.layers, &range).ok())
    return RefusedBlock(BlockStatus::kInvalid);
  wire::BlockGrant grant;
  grant.status = BlockStatus::kOk;
  grant.tier = Tier::kHost;
  grant.extent = {.slab = 0, .offset = range.begin, .bytes = range.end - range.begin};
  if (!request.want_tables) return grant;
  table.segments = {table.segments.begin() + range.first,
                    table.segments.begin() + range.first + range.count};
  grant.table = std::move(table);
  return grant;
}

void SessionFillings::AnswerDecoded(const Filling& filling, size_t key, wire::BlockGrant block,
                                    ExtentReservation extent) {
  const bool given = block.status == BlockStatus::kOk;
  if (given ? !leases_.Keep(filling.lease, &extent) : !leases_.Listens(filling.lease)) return;
  extent.Reset();  // empty already if the lease has taken it
  if (given) {
    ++deps_.counters.blocks_hit;
    ++deps_.counters.blocks_decoded_for_lease;
  } else if (block.status != BlockStatus::kCancelled) {
    ++deps_.counters.blocks_missing;
  }
  wire::Down down;
  AddAnswer(filling, key, std::move(block), &down);
  context_.outlet.Send(std::move(down));
}

// ---- copies

void SessionFillings::RunCopies(std::shared_ptr<Filling> filling) {
  while (filling != nullptr && !Submit(filling)) {
    GiveUp(*filling);
    filling = NextCopies();
  }
}

std::shared_ptr<Filling> SessionFillings::NextCopies() {
  MutexLock lock(mu_);
  copying_ = !waiting_.empty();
  if (!copying_) return nullptr;
  std::shared_ptr<Filling> next = std::move(waiting_.front());
  waiting_.pop_front();
  return next;
}

void SessionFillings::Copy(const std::shared_ptr<Filling>& filling) {
  PayloadCodec codec;
  wire::Down down;
  uint64_t unanswered = 0, done = 0;
  while (filling->next < filling->blocks.size()) {
    const FillingBlock& block = filling->blocks[filling->next++];
    wire::BlockGrant grant = RefusedBlock(BlockStatus::kCancelled);
    if (leases_.Wants(filling->lease)) grant = CopyOne(*filling, block, codec);
    filling->ReleaseAtEnd();
    unanswered += grant.extent.bytes;
    done += grant.extent.bytes;
    CountCopied(*filling, block, grant);
    AddAnswer(*filling, block.key, std::move(grant), &down);
    if (unanswered >= kAnswerBytes || down.ready.size() + down.failed.size() >= kAnswerBlocks) {
      SendAnswers(filling->lease, std::exchange(down, {}));
      unanswered = 0;
    }
    if (done < kJobBytes || filling->next == filling->blocks.size()) continue;
    SendAnswers(filling->lease, std::exchange(down, {}));
    if (Submit(filling)) return;
    done = 0;
  }
  SendAnswers(filling->lease, std::move(down));
  leases_.OnCopied(filling->lease);
  RunCopies(NextCopies());
}

wire::BlockGrant SessionFillings::CopyOne(const Filling& filling, const FillingBlock& block,
                                          PayloadCodec& codec) {
  wire::BlockGrant grant = block.grant;
  std::optional<PageBuffer> decoded;
  std::span<const std::byte> from;
  if (block.as_it_is) {
    const SegmentRange& range = *block.as_it_is;
    from = deps_.store.Bytes(block.held.extent).subspan(range.begin, range.end - range.begin);
    if (block.wants_table) grant.table = block.held.metadata->Table(range);
  } else {
    decoded.emplace(static_cast<uint32_t>(PagesFor(block.held.metadata->raw_payload_bytes())));
    grant = DecodeTo(filling.request, block.held, decoded->bytes(), codec);
    if (grant.status != BlockStatus::kOk) return grant;
    from = decoded->bytes().subspan(grant.extent.offset, grant.extent.bytes);
  }
  if (filling.read_since) grant.tier = Tier::kDisk;  // where the acquire found the block
  const auto place = filling.window->Take(from.size());
  if (!place) {
    grant = RefusedBlock(BlockStatus::kFull);
    grant.extent.bytes = from.size();  // what the window must have space for
    return grant;
  }
  if (!CopyTo(block, from, place->bytes)) {
    deps_.store.DropDamaged(block.held.ref);
    return RefusedBlock(BlockStatus::kDamaged);
  }
  grant.extent = {.slab = 0, .offset = place->offset, .bytes = from.size()};
  return grant;
}

bool SessionFillings::CopyTo(const FillingBlock& block, std::span<const std::byte> from,
                             std::span<std::byte> to) {
  bool whole = true;
  if (block.check) {
    ++deps_.counters.host_checks;
    // A writer may leave hashing to the daemon.  Such a block is hashed first.
    whole = block.held.metadata->hashed() || deps_.store.Check(block.held, *block.as_it_is);
    whole =
        whole && CopyChecked(deps_.copy_kernel, *block.held.metadata, *block.as_it_is, from, to);
  } else {
    deps_.copy_kernel.Copy(to, from);
  }
  StoreFence();
  return whole;
}

void SessionFillings::CountCopied(const Filling& filling, const FillingBlock& block,
                                  const wire::BlockGrant& grant) {
  if (grant.status != BlockStatus::kOk) {
    if (grant.status != BlockStatus::kCancelled) ++deps_.counters.blocks_missing;
    return;
  }
  deps_.counters.copied_bytes += grant.extent.bytes;
  if (!block.as_it_is) ++deps_.counters.blocks_decoded_for_lease;
  if (filling.read_since) {
    ++deps_.counters.blocks_from_disk;
    deps_.counters.got_disk_bytes += grant.extent.bytes;
    deps_.counters.got_disk_tokens += filling.variant.block_tokens;
    deps_.counters.latencies.disk_read.Observe(deps_.clock.Now() - *filling.read_since);
  } else {
    ++deps_.counters.blocks_hit;
    deps_.counters.got_host_bytes += grant.extent.bytes;
    deps_.counters.got_host_tokens += filling.variant.block_tokens;
  }
}

void SessionFillings::SendAnswers(LeaseId lease, wire::Down down) {
  if (down.ready.empty() && down.failed.empty()) return;
  if (leases_.Listens(lease)) context_.outlet.Send(std::move(down));
}

}  // namespace larder
