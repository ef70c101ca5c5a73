// ShmTransport::Get.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/pending_read.h"
#include "client/session/stoppable_wait.h"
#include "client/transport/shm_transport.h"
#include "storage/codec/payload_codec.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// A batch is read in windows of at most so many blocks, so that a window is copied while the daemon
// answers the request for the next.
constexpr size_t kWindowBlocks = 16;

// Bytes that one thread copies at a time: few enough that the threads end at about the same time.
constexpr uint64_t kPieceBytes = 256 << 10;

struct Piece {
  std::span<std::byte> to;
  std::span<const std::byte> from;
};

// A block that arrived encoded.
struct EncodedBlock {
  size_t key = 0;
  const SegmentTable* table = nullptr;
  MappedBytes mapped;
};

// In a session that reads by copies, a window of several blocks takes at most one kRoomShare-th of
// the staging segment, so that two windows and a Put fit into it at the same time.
constexpr uint64_t kRoomShare = 4;

struct Window {
  std::vector<size_t> keys;  // indices of the batch
  uint64_t bytes = 0;        // of the staging segment that the keys need
  PendingRead read;          // set once it was requested
};

// One Get call.
class GetRun {
 public:
  GetRun(SessionCore& core, const CopyKernel& kernel, CopyPool& pool, const VariantHandle& variant,
         bool accept_encoded, std::span<const GetBlock> blocks, const CallOptions& options)
      : core_(core),
        kernel_(kernel),
        pool_(pool),
        accept_encoded_(accept_encoded),
        variant_(variant),
        blocks_(blocks),
        lease_ms_(DeadlineMs(options)),
        promise_(options.promise),
        remaining_(options.remaining),
        stop_(options.stop),
        deadline_(DeadlineOf(options)),
        status_(blocks.size(), BlockStatus::kCancelled),
        mismatch_(blocks.size(), 0) {}

  [[nodiscard]] absl::Status Run();
  [[nodiscard]] std::vector<BlockStatus> TakeStatus() { return std::move(status_); }

 private:
  template <class Wait>
  [[nodiscard]] auto Await(const Wait& wait) const {
    return AwaitUnlessStopped(stop_, deadline_, wait);
  }
  [[nodiscard]] std::vector<Window> Cut(const std::vector<size_t>& keys) const;
  [[nodiscard]] ByteCount BytesOf(const Window& window) const;
  [[nodiscard]] absl::Status Pass(const std::vector<size_t>& keys);
  // Requests the blocks of a window.  `behind`: the bytes that the engine will read after them.  In
  // a session that reads by copies, returns DeadlineExceeded if the staging segment had not enough
  // free memory by `until`.
  [[nodiscard]] absl::Status Ask(Window& window, ByteCount behind, TimePoint until);
  [[nodiscard]] absl::Status Finish(Window& window);
  void CopyReady(Window& window, std::span<const size_t> at,
                 const std::vector<wire::BlockGrant>& grants);
  [[nodiscard]] absl::Status CopyPending(Window& window, std::vector<wire::BlockGrant>& grants);
  [[nodiscard]] BlockStatus Plan(const PendingRead& read, size_t key,
                                 const wire::BlockGrant& grant);
  [[nodiscard]] BlockStatus PlanEncoded(const PendingRead& read, size_t key,
                                        const wire::BlockGrant& grant);
  [[nodiscard]] bool Decode(const EncodedBlock& block) const;
  [[nodiscard]] bool HashesMatch(const GetBlock& block, const SegmentTable& table);
  void Settle(const Window& window);

  SessionCore& core_;
  const CopyKernel& kernel_;
  CopyPool& pool_;
  const bool accept_encoded_;
  const VariantHandle& variant_;
  const std::span<const GetBlock> blocks_;
  const uint32_t lease_ms_;
  const LeaseId promise_;
  const ByteCount remaining_;  // what the engine's request still reads after the call
  const std::stop_token stop_;
  const TimePoint deadline_;
  std::vector<BlockStatus> status_;
  // The blocks that are copied next.
  std::vector<Piece> pieces_;
  std::vector<EncodedBlock> encoded_;
  std::vector<std::shared_ptr<const void>> owners_;  // keep the mappings of the sources alive
  // By index of the batch: 1 if this process found wrong bytes.  Written by copying threads.
  std::vector<uint8_t> mismatch_;
};

uint64_t PayloadOf(const GetBlock& block) {
  SegmentCursor at;
  for (const std::span<std::byte> segment : block.segments) (void)at.Next(segment.size());
  return at.end();
}

// Returns true if the table has one segment per span of the block, each of one layer and, once
// decoded, of the span's size.
bool TableFits(const SegmentTable& table, const GetBlock& block) {
  if (table.segments.size() != block.segments.size()) return false;
  for (size_t i = 0; i < table.segments.size(); ++i) {
    const Segment& segment = table.segments[i];
    const uint32_t raw = segment.codec == Codec::kIdentity ? segment.bytes : segment.raw_bytes;
    if (segment.layers != 1 || raw != block.segments[i].size()) return false;
  }
  return true;
}

bool GetRun::HashesMatch(const GetBlock& block, const SegmentTable& table) {
  core_.counters().checked.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < block.segments.size(); ++i) {
    if (HashBytes(block.segments[i]) != table.segments[i].xxh3) return false;
  }
  return true;
}

// Plans how a block is copied or decoded, without doing it.  Returns kOk, or why the block cannot
// be read.
BlockStatus GetRun::Plan(const PendingRead& read, size_t key, const wire::BlockGrant& grant) {
  const GetBlock& block = blocks_[key];
  if (grant.table && grant.table->encoded()) return PlanEncoded(read, key, grant);
  const uint64_t payload = PayloadOf(block);
  if (grant.extent.bytes != payload) return BlockStatus::kInvalid;
  if (grant.table && !TableFits(*grant.table, block)) return BlockStatus::kInvalid;
  absl::StatusOr<MappedBytes> mapped = read.Map(grant.extent);
  if (!mapped.ok()) return StatusOfUnmapped(mapped.status(), BlockStatus::kDamaged);
  SegmentCursor at;
  for (const std::span<std::byte> segment : block.segments) {
    const std::span<const std::byte> from = at.Next(mapped->bytes, segment.size());
    for (uint64_t done = 0; done < segment.size(); done += kPieceBytes) {
      const uint64_t bytes = std::min(kPieceBytes, segment.size() - done);
      pieces_.push_back({segment.subspan(done, bytes), from.subspan(done, bytes)});
    }
  }
  owners_.push_back(std::move(mapped->owner));
  return BlockStatus::kOk;
}

BlockStatus GetRun::PlanEncoded(const PendingRead& read, size_t key,
                                const wire::BlockGrant& grant) {
  const SegmentTable& table = *grant.table;
  if (!accept_encoded_ || !table.hashed || !TableFits(table, blocks_[key]) ||
      ByteCount(grant.extent.bytes) != table.PayloadBytes() || !PayloadCodec().CanDecode(table)) {
    return BlockStatus::kInvalid;
  }
  absl::StatusOr<MappedBytes> mapped = read.Map(grant.extent);
  if (!mapped.ok()) return StatusOfUnmapped(mapped.status(), BlockStatus::kDamaged);
  encoded_.push_back({key, &table, *std::move(mapped)});
  return BlockStatus::kOk;
}

// Decodes from a private copy, because another process may write to the source.  Returns false if a
// segment does not match its hash or cannot be decoded.
bool GetRun::Decode(const EncodedBlock& block) const {
  PayloadCodec codec;
  std::vector<std::byte> stored;
  SegmentCursor at;
  for (size_t i = 0; i < block.table->segments.size(); ++i) {
    const Segment& segment = block.table->segments[i];
    const auto from = at.Next(block.mapped.bytes, segment.bytes);
    stored.assign(from.begin(), from.end());
    if (HashBytes(stored) != segment.xxh3 ||
        !codec.DecodeSegment(segment, stored, blocks_[block.key].segments[i]).ok()) {
      return false;
    }
  }
  return true;
}

void GetRun::CopyReady(Window& window, std::span<const size_t> at,
                       const std::vector<wire::BlockGrant>& grants) {
  std::vector<size_t> hashed;
  for (const size_t i : at) {
    BlockStatus& status = status_[window.keys[i]];
    status = grants[i].status;
    if (status == BlockStatus::kOk) status = Plan(window.read, window.keys[i], grants[i]);
    // kFull would invite another try, which cannot help if the block is larger than the caller's
    // spans.
    if (status == BlockStatus::kFull && grants[i].extent.bytes > PayloadOf(blocks_[window.keys[i]]))
      status = BlockStatus::kInvalid;
    const bool check = grants[i].table && grants[i].table->hashed && !grants[i].table->encoded();
    if (status == BlockStatus::kOk && check) hashed.push_back(i);
  }
  pool_.ForEach(pieces_.size(), [this](size_t i) { kernel_.Copy(pieces_[i].to, pieces_[i].from); });
  pool_.ForEach(encoded_.size(), [this](size_t i) {
    if (Decode(encoded_[i])) return;
    mismatch_[encoded_[i].key] = 1;
    status_[encoded_[i].key] = BlockStatus::kDamaged;
  });
  core_.counters().checked.fetch_add(encoded_.size(), std::memory_order_relaxed);
  encoded_.clear();
  pieces_.clear();
  owners_.clear();
  pool_.ForEach(hashed.size(), [&](size_t i) {
    const size_t key = window.keys[hashed[i]];
    if (HashesMatch(blocks_[key], *grants[hashed[i]].table)) return;
    mismatch_[key] = 1;
    status_[key] = BlockStatus::kDamaged;
  });
}

// Copies the window's pending blocks as they become ready; blocks that are not ready in time become
// kCancelled.
absl::Status GetRun::CopyPending(Window& window, std::vector<wire::BlockGrant>& grants) {
  while (window.read.pending() > 0) {
    absl::StatusOr<std::vector<wire::BlockReady>> ready =
        Await([&](TimePoint until) { return window.read.WaitReady(until); });
    if (absl::IsDeadlineExceeded(ready.status())) {
      window.read.Cancel();
      for (size_t i = 0; i < grants.size(); ++i) {
        if (grants[i].status == BlockStatus::kPending)
          status_[window.keys[i]] = BlockStatus::kCancelled;
      }
      return absl::OkStatus();
    }
    LARDER_RETURN_IF_ERROR(ready.status());
    std::vector<size_t> arrived;
    for (wire::BlockReady& one : *ready) {
      grants[one.key] = std::move(one.block);
      arrived.push_back(one.key);
    }
    CopyReady(window, arrived, grants);
  }
  return absl::OkStatus();
}

absl::Status GetRun::Ask(Window& window, ByteCount behind, TimePoint until) {
  const GetBlock& first = blocks_[window.keys.front()];
  const bool whole = first.segments.size() == variant_.spec.layers;
  wire::Up up;
  wire::Acquire& acquire = up.acquires.emplace_back();
  acquire.variant = variant_.index;
  acquire.digests.reserve(window.keys.size());
  for (const size_t key : window.keys) acquire.digests.push_back(blocks_[key].digest);
  acquire.first_layer = first.first_layer;
  acquire.layers = whole ? 0 : static_cast<uint32_t>(first.segments.size());
  acquire.deadline_ms = lease_ms_;
  acquire.promised_lease = promise_;
  acquire.remaining_bytes = behind.value();
  acquire.accepted_codecs = {Codec::kIdentity};
  if (accept_encoded_) acquire.accepted_codecs.push_back(Codec::kLossless);
  LARDER_ASSIGN_OR_RETURN(window.read,
                          PendingRead::Begin(core_, ByteCount(window.bytes), until, &acquire));
  return core_.Send(std::move(up));
}

// Counts the window's blocks that are kOk, and reports to the daemon those that are kDamaged
// because this process found their bytes to be wrong.
void GetRun::Settle(const Window& window) {
  uint64_t blocks = 0, bytes = 0;
  wire::Up up;
  for (const size_t key : window.keys) {
    if (status_[key] == BlockStatus::kOk) {
      ++blocks;
      bytes += PayloadOf(blocks_[key]);
    } else if (status_[key] == BlockStatus::kDamaged && mismatch_[key] != 0) {
      core_.counters().damaged.fetch_add(1, std::memory_order_relaxed);
      if (up.damaged.empty()) up.damaged.push_back({variant_.index, {}});
      up.damaged.front().digests.push_back(blocks_[key].digest);
    }
  }
  core_.counters().blocks_got.fetch_add(blocks, std::memory_order_relaxed);
  core_.counters().bytes_got.fetch_add(bytes, std::memory_order_relaxed);
  if (!up.damaged.empty())
    (void)core_.Send(std::move(up));  // if it is lost, a later check may find the damage
}

absl::Status GetRun::Finish(Window& window) {
  LARDER_ASSIGN_OR_RETURN(wire::Grant grant,
                          Await([&](TimePoint until) { return window.read.WaitGrant(until); }));
  std::vector<size_t> now;
  for (size_t i = 0; i < grant.blocks.size(); ++i) {
    if (grant.blocks[i].status != BlockStatus::kPending) now.push_back(i);
  }
  CopyReady(window, now, grant.blocks);
  const absl::Status result = CopyPending(window, grant.blocks);
  // Bytes count only if the daemon still promised them after the last one was read.
  if (!window.read.Holds()) {
    for (const size_t key : window.keys) {
      if (status_[key] == BlockStatus::kOk || status_[key] == BlockStatus::kDamaged) {
        status_[key] = BlockStatus::kCancelled;
      }
    }
  }
  Settle(window);
  window.read = {};
  return result;
}

std::vector<Window> GetRun::Cut(const std::vector<size_t>& keys) const {
  const uint64_t bytes_max = core_.reads_copied() ? core_.staging()->size().value() / kRoomShare
                                                  : std::numeric_limits<uint64_t>::max();
  std::vector<Window> windows;
  for (const size_t key : keys) {
    const uint64_t bytes = PayloadStride(PayloadOf(blocks_[key]));
    const bool fits =
        !windows.empty() && windows.back().keys.size() < kWindowBlocks &&
        windows.back().bytes + bytes <= bytes_max &&
        blocks_[windows.back().keys.front()].first_layer == blocks_[key].first_layer &&
        blocks_[windows.back().keys.front()].segments.size() == blocks_[key].segments.size();
    if (!fits) windows.emplace_back();
    windows.back().keys.push_back(key);
    windows.back().bytes += bytes;
  }
  return windows;
}

ByteCount GetRun::BytesOf(const Window& window) const {
  ByteCount bytes;
  for (const size_t key : window.keys) bytes += ByteCount(PayloadOf(blocks_[key]));
  return bytes;
}

absl::Status GetRun::Pass(const std::vector<size_t>& keys) {
  std::vector<Window> windows = Cut(keys);
  std::vector<ByteCount> behind(windows.size(), remaining_);
  for (size_t i = windows.size() - 1; i > 0; --i) behind[i - 1] = behind[i] + BytesOf(windows[i]);
  for (size_t i = 0; i < windows.size(); ++i) {
    // A Get waits for free memory in the staging segment only while it holds none, so that two Gets
    // do not wait for each other.
    if (!windows[i].read) {
      LARDER_RETURN_IF_ERROR(Ask(windows[i], behind[i], deadline_));
    }
    if (i + 1 < windows.size()) {
      const absl::Status status = Ask(windows[i + 1], behind[i + 1], TimePoint());
      if (!status.ok() && !absl::IsDeadlineExceeded(status)) return status;
    }
    LARDER_RETURN_IF_ERROR(Finish(windows[i]));
  }
  return absl::OkStatus();
}

absl::Status GetRun::Run() {
  std::vector<size_t> todo;
  const uint64_t most =
      core_.reads_copied() ? core_.staging()->size().value() : std::numeric_limits<uint64_t>::max();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (!ShapeFits(variant_.spec, blocks_[i])) {
      status_[i] = BlockStatus::kInvalid;
    } else if (PayloadOf(blocks_[i]) > most && blocks_.size() > 1) {
      status_[i] = BlockStatus::kUnsupported;  // the other blocks of the batch are still read
    } else {
      todo.push_back(i);
    }
  }
  // A block may have been kFull because of this call's own leases: retry while that helps.
  while (!todo.empty()) {
    LARDER_RETURN_IF_ERROR(Pass(todo));
    std::vector<size_t> full;
    std::copy_if(todo.begin(), todo.end(), std::back_inserter(full),
                 [this](size_t key) { return status_[key] == BlockStatus::kFull; });
    if (full.size() == todo.size()) break;
    todo = std::move(full);
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t DeadlineMs(const CallOptions& options) {
  // A lease that follows the patience of its caller must not end while the caller still reads.
  constexpr int64_t kLeast = 100, kLeastOfDeadline = 1000;
  if (options.life.count() > 0) {
    return static_cast<uint32_t>(
        std::clamp<int64_t>(options.life.count(), kLeast, wire::kDeadlineMaxMs));
  }
  return static_cast<uint32_t>(
      std::clamp<int64_t>(options.deadline.count(), kLeastOfDeadline, wire::kDeadlineMaxMs));
}

absl::StatusOr<std::vector<BlockStatus>> ShmTransport::Get(const VariantHandle& variant,
                                                           std::span<const GetBlock> blocks,
                                                           const CallOptions& options) {
  LARDER_RETURN_IF_ERROR(CheckBatch(blocks.size()));
  LARDER_RETURN_IF_ERROR(core_.status());
  GetRun run(core_, kernel_, pool_, variant, accept_encoded_, blocks, options);
  LARDER_RETURN_IF_ERROR(run.Run());
  return run.TakeStatus();
}

}  // namespace larder
