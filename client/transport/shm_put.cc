// ShmTransport::Put.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <stop_token>
#include <utility>

#include "client/session/stoppable_wait.h"
#include "client/transport/shm_transport.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// Limits of a window (blocks whose extents are requested together) of more than one block: blocks,
// bytes, and bytes in a message, which may have 16 MiB (a token takes 4, a segment about 20).
constexpr size_t kWindowBlocks = 64;
constexpr uint64_t kWindowBytesMax = 64 << 20;
constexpr uint64_t kWindowMessageBytes = 4 << 20;
// A window of several blocks takes at most a quarter of the process's share of the pool
// (lease_bytes_max), because two windows may be under way, and other extents reserved ahead.
constexpr uint64_t kWindowShareOfLease = 4;
// Publishes that may be unanswered.  Beyond this the call waits for the oldest, so that unanswered
// publishes do not hold ever more of the process's share of the pool.
constexpr size_t kPublishedMax = 4;
// A staged Put publishes after about so many bytes: few enough that the daemon copies while this
// thread does, enough that the cost of a message does not matter.
constexpr uint64_t kPieceBytes = 8 << 20;

// One block that is being stored.
struct Item {
  size_t key = 0;  // index in the batch
  uint64_t bytes = 0;
  SegmentTable table;
  std::optional<HeldExtent> extent;
  StagingArea::Chunk chunk;  // staged: where its bytes are
  BlockStatus status = BlockStatus::kCancelled;
};

struct Window {
  std::vector<Item> items;
  OpenCall reserve;  // for the items without an extent
};

// Blocks that were published and not yet answered.
struct Published {
  OpenCall call;
  std::vector<Item> items;
};

// One Put call.
class PutRun {
 public:
  PutRun(SessionCore& core, const CopyKernel& kernel, CopyPool& pool, const VariantHandle& variant,
         std::span<const PutBlock> blocks, const CallOptions& options)
      : core_(core),
        kernel_(kernel),
        pool_(pool),
        variant_(variant),
        blocks_(blocks),
        hash_(options.hash),
        lease_ms_(DeadlineMs(options)),
        stop_(options.stop),
        deadline_(DeadlineOf(options)),
        status_(blocks.size(), BlockStatus::kCancelled) {}
  ~PutRun();
  PutRun(const PutRun&) = delete;
  PutRun& operator=(const PutRun&) = delete;

  [[nodiscard]] absl::Status Run();
  [[nodiscard]] std::vector<BlockStatus> TakeStatus() { return std::move(status_); }

 private:
  [[nodiscard]] std::vector<Window> Cut();
  [[nodiscard]] absl::Status AskExtents(Window& window);
  [[nodiscard]] absl::StatusOr<wire::Reserved> AwaitReserved(Window& window);
  [[nodiscard]] absl::Status AwaitExtents(Window& window);
  [[nodiscard]] absl::Status WriteMapped(Window& window);
  [[nodiscard]] absl::Status WriteStaged(Window& window);
  [[nodiscard]] absl::StatusOr<StagingArea::Chunk> AllocateChunk(uint64_t bytes);
  void CopyIn(Item& item, std::span<std::byte> to, bool hash);
  void CopyToExtents(std::vector<Item>& items);
  [[nodiscard]] absl::Status Publish(std::vector<Item> items, size_t restock);
  [[nodiscard]] absl::Status CollectOldest();
  void End(Item& item);

  SessionCore& core_;
  const CopyKernel& kernel_;
  CopyPool& pool_;
  const VariantHandle& variant_;
  const std::span<const PutBlock> blocks_;
  const bool hash_;
  const uint32_t lease_ms_;
  const std::stop_token stop_;
  const TimePoint deadline_;
  std::vector<Window> windows_;
  std::vector<Item> piece_;  // staged, to be published next
  std::deque<Published> published_;
  std::vector<BlockStatus> status_;
};

// Returns what the call still holds after an error.  From staging memory that was published the
// daemon may copy until it has answered, so that memory is freed with the answer.
PutRun::~PutRun() {
  StoreFence();  // before freed memory is written again
  for (Window& window : windows_) {
    for (Item& item : window.items) End(item);
  }
  for (Item& item : piece_) End(item);
  for (Published& published : published_) {
    std::vector<StagingArea::Chunk> chunks;
    for (Item& item : published.items) {
      if (!item.chunk.bytes.empty()) chunks.push_back(std::exchange(item.chunk, {}));
      End(item);
    }
    if (!chunks.empty()) core_.FreeWhenAnswered(published.call.id(), std::move(chunks));
  }
}

// Returns what the item holds and records its status.
void PutRun::End(Item& item) {
  status_[item.key] = item.status;
  if (item.extent) {
    const bool stored = item.status == BlockStatus::kOk || item.status == BlockStatus::kDuplicate;
    core_.EndExtent(*item.extent, /*abort=*/!stored);
    item.extent.reset();
  }
  if (!item.chunk.bytes.empty()) core_.staging()->Free(item.chunk);
  item.chunk = {};
}

std::vector<Window> PutRun::Cut() {
  const uint64_t share = core_.attached().lease_bytes_max.value() / kWindowShareOfLease;
  const uint64_t bytes_max = std::min(kWindowBytesMax, std::max<uint64_t>(share, 1));
  std::vector<Window> windows;
  uint64_t bytes = 0, message = 0;
  for (size_t key = 0; key < blocks_.size(); ++key) {
    Item item;
    item.key = key;
    if (ShapeFits(variant_.spec, blocks_[key])) {
      item.table = TableOf(blocks_[key]);
      item.bytes = item.table.PayloadBytes().value();
    }
    if (item.bytes == 0 || item.bytes > core_.attached().slab_bytes.value()) {
      status_[key] = BlockStatus::kInvalid;
      continue;
    }
    const uint64_t words = 4 * blocks_[key].tokens.size() + 20 * item.table.segments.size();
    const bool fits = !windows.empty() && windows.back().items.size() < kWindowBlocks &&
                      bytes + item.bytes <= bytes_max && message + words <= kWindowMessageBytes;
    if (!fits) {
      windows.emplace_back();
      bytes = message = 0;
    }
    bytes += item.bytes;
    message += words;
    windows.back().items.push_back(std::move(item));
  }
  return windows;
}

// Takes extents that the session reserved ahead and requests those missing, without waiting.
absl::Status PutRun::AskExtents(Window& window) {
  wire::Reserve reserve;
  for (Item& item : window.items) {
    if (!item.extent) item.extent = core_.TakeStock(ByteCount(item.bytes));
    if (!item.extent) reserve.bytes.push_back(ByteCount(item.bytes));
  }
  if (reserve.bytes.empty()) return absl::OkStatus();
  window.reserve = core_.Open();
  reserve.id = window.reserve.id();
  reserve.deadline_ms = lease_ms_;
  wire::Up up;
  up.reserves.push_back(std::move(reserve));
  return core_.Send(std::move(up));
}

absl::StatusOr<wire::Reserved> PutRun::AwaitReserved(Window& window) {
  absl::StatusOr<wire::Reserved> reserved =
      AwaitAnswer<wire::Reserved>(window.reserve, stop_, deadline_);
  window.reserve = {};
  if (!reserved.ok() || reserved->status != BlockStatus::kFull) return reserved;
  // The pool may be full, or the process's share used up, because of the extents that this session
  // reserved ahead and this call's publishes: release them, then request once more.
  core_.DropStock();
  while (!published_.empty()) {
    LARDER_RETURN_IF_ERROR(CollectOldest());
  }
  LARDER_RETURN_IF_ERROR(AskExtents(window));
  if (!window.reserve) return wire::Reserved{};
  reserved = AwaitAnswer<wire::Reserved>(window.reserve, stop_, deadline_);
  window.reserve = {};
  return reserved;
}

// Items for which the daemon granted no extent are ended here, with the status of its answer, and
// removed from the window.
absl::Status PutRun::AwaitExtents(Window& window) {
  if (!window.reserve) return absl::OkStatus();
  LARDER_ASSIGN_OR_RETURN(wire::Reserved reserved, AwaitReserved(window));
  const auto missing = std::count_if(window.items.begin(), window.items.end(),
                                     [](const Item& item) { return !item.extent; });
  if (reserved.status == BlockStatus::kOk &&
      reserved.extents.size() != static_cast<size_t>(missing)) {
    for (uint32_t i = 0; i < reserved.extents.size(); ++i) {
      core_.EndExtent({reserved.reservation, i, reserved.extents[i]}, /*abort=*/true);
    }
    return absl::InternalError("the daemon granted another number of extents than requested");
  }
  uint32_t next = 0;
  for (Item& item : window.items) {
    if (item.extent) continue;
    if (reserved.status == BlockStatus::kOk) {
      item.extent = HeldExtent{reserved.reservation, next, reserved.extents[next]};
      item.extent->where.bytes = item.bytes;
      ++next;
    } else {
      item.status = reserved.status;
      End(item);
    }
  }
  std::erase_if(window.items, [](const Item& item) { return !item.extent; });
  return absl::OkStatus();
}

void PutRun::CopyIn(Item& item, std::span<std::byte> to, bool hash) {
  const PutBlock& block = blocks_[item.key];
  PayloadWriter out(to);
  for (size_t i = 0; i < block.segments.size(); ++i) {
    const std::span<const std::byte> segment = block.segments[i];
    const std::span<std::byte> place = out.Next(segment.size());
    if (hash) {
      item.table.segments[i].xxh3 = kernel_.CopyAndHash(place, segment);
    } else {
      kernel_.Copy(place, segment);
    }
  }
  item.table.hashed = hash;
}

// Copies the items that have an extent and were not copied yet: those still have the initial
// status.
void PutRun::CopyToExtents(std::vector<Item>& items) {
  pool_.ForEach(items.size(), [&](size_t i) {
    Item& item = items[i];
    if (!item.extent || item.status != BlockStatus::kCancelled) return;
    const absl::StatusOr<MappedBytes> mapped = core_.Map(item.extent->where, /*writable=*/true);
    item.status = mapped.ok() ? BlockStatus::kPending
                              : StatusOfUnmapped(mapped.status(), BlockStatus::kNotHeld);
    if (mapped.ok()) CopyIn(item, mapped->bytes, hash_);
  });
}

absl::Status PutRun::WriteMapped(Window& window) {
  CopyToExtents(window.items);  // those reserved ahead, while the daemon reserves the others
  LARDER_RETURN_IF_ERROR(AwaitExtents(window));
  CopyToExtents(window.items);
  std::vector<Item> copied;
  for (Item& item : window.items) {
    if (item.status == BlockStatus::kPending) {
      copied.push_back(std::move(item));
    } else {
      End(item);
    }
  }
  const size_t count = copied.size();
  window.items.clear();
  return Publish(std::move(copied), count);
}

absl::StatusOr<StagingArea::Chunk> PutRun::AllocateChunk(uint64_t bytes) {
  StagingArea& staging = *core_.staging();
  absl::StatusOr<StagingArea::Chunk> chunk = staging.Allocate(ByteCount(bytes), TimePoint());
  // If the segment is full, the call first has its own staged blocks published and answered, which
  // frees their memory.  After that it waits for memory that other calls free.
  while (absl::IsDeadlineExceeded(chunk.status()) && (!piece_.empty() || !published_.empty())) {
    LARDER_RETURN_IF_ERROR(piece_.empty() ? CollectOldest()
                                          : Publish(std::exchange(piece_, {}), 0));
    chunk = staging.Allocate(ByteCount(bytes), TimePoint());
  }
  if (absl::IsDeadlineExceeded(chunk.status()))
    chunk = staging.Allocate(ByteCount(bytes), deadline_);
  return chunk;
}

absl::Status PutRun::WriteStaged(Window& window) {
  LARDER_RETURN_IF_ERROR(AwaitExtents(window));
  const size_t count = window.items.size();
  uint64_t piece_bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    Item& item = window.items[i];
    LARDER_ASSIGN_OR_RETURN(item.chunk, AllocateChunk(item.bytes));
    CopyIn(item, item.chunk.bytes, /*hash=*/false);
    item.status = BlockStatus::kPending;
    piece_bytes += item.bytes;
    piece_.push_back(std::move(item));
    item.extent.reset();  // the piece owns the extent now
    item.chunk = {};
    const bool last = i + 1 == count;
    if (piece_bytes < kPieceBytes && !last) continue;
    LARDER_RETURN_IF_ERROR(Publish(std::exchange(piece_, {}), last ? count : 0));
    piece_bytes = 0;
  }
  window.items.clear();
  return absl::OkStatus();
}

// Sends one message, with a Publish per reservation.  If `restock` > 0, the message may also
// reserve extents ahead, for later Puts of blocks as large as items.front().
absl::Status PutRun::Publish(std::vector<Item> items, size_t restock) {
  if (items.empty()) return absl::OkStatus();
  StoreFence();
  wire::Up up;
  const ByteCount restock_bytes(items.front().bytes);
  std::map<ReservationId, size_t> part_of;
  const size_t first = published_.size();
  for (Item& item : items) {
    const auto [found, fresh] = part_of.try_emplace(item.extent->reservation, up.publishes.size());
    if (fresh) {
      Published& published = published_.emplace_back();
      published.call = core_.Open();
      up.publishes.push_back({published.call.id(), item.extent->reservation, variant_.index, {}});
    }
    const PutBlock& block = blocks_[item.key];
    wire::PublishBlock& part = up.publishes[found->second].blocks.emplace_back();
    part.extent = item.extent->index;
    part.digest = block.digest;
    part.parent = block.parent;
    part.content = block.content;
    part.tokens.assign(block.tokens.begin(), block.tokens.end());
    part.segments = std::move(item.table);  // not needed for anything else
    if (core_.writes_staged()) {
      part.staging_offset = item.chunk.offset;
      part.staging_id = core_.staging()->id();
    }
    published_[first + found->second].items.push_back(std::move(item));
  }
  // Enough for two windows like this one, so that the next Put may not have to wait for extents.
  if (restock > 0) core_.AskStock(restock_bytes, 2 * restock, &up);
  LARDER_RETURN_IF_ERROR(core_.Send(std::move(up)));
  while (published_.size() > kPublishedMax) {
    LARDER_RETURN_IF_ERROR(CollectOldest());
  }
  return absl::OkStatus();
}

absl::Status PutRun::CollectOldest() {
  Published& oldest = published_.front();
  LARDER_ASSIGN_OR_RETURN(wire::Published answer,
                          AwaitAnswer<wire::Published>(oldest.call, stop_, deadline_));
  if (answer.status.size() != oldest.items.size()) {
    return absl::InternalError(
        "the daemon answered a publish with another number of statuses than blocks");
  }
  uint64_t blocks = 0, bytes = 0;
  for (size_t i = 0; i < oldest.items.size(); ++i) {
    Item& item = oldest.items[i];
    item.status = answer.status[i];
    if (item.status == BlockStatus::kOk) ++blocks, bytes += item.bytes;
    End(item);
  }
  core_.counters().blocks_put.fetch_add(blocks, std::memory_order_relaxed);
  core_.counters().bytes_put.fetch_add(bytes, std::memory_order_relaxed);
  published_.pop_front();
  return absl::OkStatus();
}

absl::Status PutRun::Run() {
  windows_ = Cut();
  const bool staged = core_.writes_staged();
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (i == 0) {
      LARDER_RETURN_IF_ERROR(AskExtents(windows_[0]));
    }
    if (i + 1 < windows_.size()) {
      LARDER_RETURN_IF_ERROR(AskExtents(windows_[i + 1]));
    }
    LARDER_RETURN_IF_ERROR(staged ? WriteStaged(windows_[i]) : WriteMapped(windows_[i]));
  }
  while (!published_.empty()) {
    LARDER_RETURN_IF_ERROR(CollectOldest());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<BlockStatus>> ShmTransport::Put(const VariantHandle& variant,
                                                           std::span<const PutBlock> blocks,
                                                           const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(CheckBatch(blocks.size()));
  LARDER_RETURN_IF_ERROR(core_.status());
  PutRun run(core_, kernel_, pool_, variant, blocks, options);
  LARDER_RETURN_IF_ERROR(run.Run());
  return run.TakeStatus();
}

}  // namespace larder
