#include "client/paged_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/api/call_until.h"
#include "client/transport/transport.h"
#include "cuda/paged_plan.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// Compares the layers, sizes and codecs of the segments, not their hashes.
bool SameSegments(const SegmentTable& a, const SegmentTable& b) {
  return std::ranges::equal(a.segments, b.segments, [](const Segment& x, const Segment& y) {
    return x.layers == y.layers && x.bytes == y.bytes && x.codec == y.codec;
  });
}

// On the host, runs of at least this length are copied one by one; a scatter or gather moves 16
// bytes at a time.
constexpr uint32_t kHostRunBytes = 512;

uint64_t AddressOf(std::span<const std::byte> bytes) {
  return reinterpret_cast<uint64_t>(bytes.data());
}

// Writes the zeros that a record has between segments.
void ZeroPadding(std::span<std::byte> payload, const SegmentTable& table) {
  PayloadWriter out(payload);
  for (const Segment& segment : table.segments) (void)out.Next(segment.bytes);
}

}  // namespace

// ---- PagedLoad

PagedLoad& PagedLoad::operator=(PagedLoad&& other) noexcept {
  if (this != &other) {
    Finish();
    lease_ = std::move(other.lease_);
    status_ = std::move(other.status_);
    steps_ = std::move(other.steps_);
    told_ = other.told_;
  }
  return *this;
}

PagedLoad::~PagedLoad() { Finish(); }

// The lease must not end while the device reads the leased blocks, so this waits without a
// deadline.  DeviceEvent::Wait then returns before the copies are done only if the device failed.
void PagedLoad::Finish() {
  for (const Step& step : steps_)
    (void)step.event->Wait(std::chrono::steady_clock::time_point::max());
  steps_.clear();
}

absl::StatusOr<std::vector<uint32_t>> PagedLoad::Placed() {
  std::vector<uint32_t> placed;
  for (; told_ < steps_.size(); ++told_) {
    LARDER_ASSIGN_OR_RETURN(const bool done, steps_[told_].event->Done());
    if (!done) break;
    placed.insert(placed.end(), steps_[told_].blocks.begin(), steps_[told_].blocks.end());
  }
  if (!placed.empty() && lease_.size() > 0 && !lease_.Valid()) placed.clear();
  return placed;
}

absl::StatusOr<std::vector<BlockStatus>> PagedLoad::Wait(
    std::chrono::steady_clock::time_point deadline) {
  std::vector<BlockStatus> result = status_;
  const auto cancel = [&result](const Step& step) {
    for (const uint32_t block : step.blocks) result[block] = BlockStatus::kCancelled;
  };
  for (const Step& step : steps_) {
    const absl::Status done = step.event->Wait(deadline);
    if (absl::IsDeadlineExceeded(done))
      cancel(step);
    else if (!done.ok())
      return done;
  }
  // Checked after the copies: their bytes are right only if the lease was still valid when the last
  // one was read.
  if (lease_.size() > 0 && !lease_.Valid())
    for (const Step& step : steps_) cancel(step);
  return result;
}

const DeviceEvent* PagedLoad::event() const {
  return steps_.empty() ? nullptr : steps_.back().event.get();
}

// ---- PagedCache

PagedCache::PagedCache(Session& session, const VariantHandle& variant, PagedPlan plan,
                       PayloadLayout payload, const PagedCacheOptions& options)
    : session_(session),
      variant_(variant),
      plan_(std::make_unique<const PagedPlan>(std::move(plan))),
      payload_(std::move(payload)),
      payload_bytes_(payload_.table.PayloadBytes().value()),
      payload_stride_(PayloadStride(payload_bytes_)),
      options_(options) {}

PagedCache::~PagedCache() = default;

absl::StatusOr<std::unique_ptr<PagedCache>> PagedCache::Make(Session& session, Device& device,
                                                             const VariantHandle& variant,
                                                             const PagedLayout& engine,
                                                             const PayloadLayout& payload,
                                                             const PagedCacheOptions& options) {
  if (payload.block_tokens != variant.spec.block_tokens || engine.layers != variant.spec.layers)
    return absl::InvalidArgumentError(
        absl::StrCat("payload and engine must match the variant, which has blocks of ",
                     variant.spec.block_tokens, " tokens and ", variant.spec.layers, " layers"));
  LARDER_ASSIGN_OR_RETURN(PagedPlan plan, PagedPlan::Make(engine, payload));
  std::unique_ptr<PagedCache> cache(
      new PagedCache(session, variant, std::move(plan), payload, options));
  LARDER_RETURN_IF_ERROR(cache->Open(device));
  return cache;
}

absl::Status PagedCache::Open(Device& device) {
  const uint64_t slot_bytes = options_.staging_bytes.value() / kSlots / kPageBytes * kPageBytes;
  if (slot_bytes < payload_stride_)
    return absl::InvalidArgumentError(
        absl::StrCat("staging_bytes: ", options_.staging_bytes.value(), " bytes do not hold ",
                     kSlots, " blocks of ", payload_bytes_));
  const bool host = device.info().kind == DeviceKind::kHost;
  copies_runs_ = plan_->PrefersCopies() || (host && plan_->tile().run_bytes >= kHostRunBytes);
  in_place_ = host;
  if (!copies_runs_ && !in_place_) {
    LARDER_ASSIGN_OR_RETURN(staging_, device.Allocate(options_.staging_bytes));
    for (size_t i = 0; i < kSlots; ++i) slots_[i].address = staging_->address() + i * slot_bytes;
  }
  if (session_.write_mode() != WriteMode::kMapped || session_.read_mode() != ReadMode::kMapped) {
    LARDER_ASSIGN_OR_RETURN(buffer_, device.AllocatePinned(ByteCount(slot_bytes)));
  }
  for (std::unique_ptr<DeviceQueue>* queue : {&copies_, &moves_}) {
    LARDER_ASSIGN_OR_RETURN(*queue, device.MakeQueue(options_.low_priority));
  }
  return absl::OkStatus();
}

size_t PagedCache::BlocksPerStep() const {
  return options_.staging_bytes.value() / kSlots / kPageBytes * kPageBytes / payload_stride_;
}

absl::Status PagedCache::WaitBefore(const DeviceEvent* event) {
  if (event == nullptr) return absl::OkStatus();
  LARDER_RETURN_IF_ERROR(copies_->WaitFor(*event));
  return moves_->WaitFor(*event);
}

// Makes `user`, the queue that is going to write to the slot, wait for the work that last used the
// slot.
absl::StatusOr<PagedCache::Slot*> PagedCache::NextSlot(DeviceQueue& user) {
  Slot& slot = slots_[next_slot_++ % kSlots];
  if (slot.free != nullptr) LARDER_RETURN_IF_ERROR(user.WaitFor(*slot.free));
  return &slot;
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> PagedCache::CopyRuns(
    std::span<const PagedBlock> blocks, LayerRange layers, bool to_device) {
  std::vector<DeviceCopy> copies;
  for (const RunCopy& run : RunsOf(*plan_, layers, blocks))
    copies.push_back(to_device ? DeviceCopy{run.engine, run.payload, run.bytes}
                               : DeviceCopy{run.payload, run.engine, run.bytes});
  LARDER_RETURN_IF_ERROR(copies_->CopyBatch(
      to_device ? CopyDirection::kToDevice : CopyDirection::kFromDevice, copies));
  return copies_->Record();
}

bool PagedCache::Drain() {
  const bool copied = copies_->Wait().ok();
  const bool moved = moves_->Wait().ok();
  // A copy may have waited for a move, so the copies are awaited once more.
  return copied && moved && copies_->Wait().ok();
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> PagedCache::LoadStep(
    std::span<const PagedBlock> blocks, LayerRange layers) {
  auto event = QueueLoad(blocks, layers);
  if (!event.ok()) Drain();
  return event;
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> PagedCache::StoreStep(
    std::span<const PagedBlock> blocks) {
  auto event = QueueStore(blocks);
  if (!event.ok()) Drain();
  return event;
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> PagedCache::QueueLoad(
    std::span<const PagedBlock> blocks, LayerRange layers) {
  if (copies_runs_) return CopyRuns(blocks, layers, /*to_device=*/true);
  if (in_place_) {
    LARDER_RETURN_IF_ERROR(moves_->Scatter(*plan_, {layers, blocks, options_.multiprocessors}));
    return moves_->Record();
  }
  LARDER_ASSIGN_OR_RETURN(Slot* const slot, NextSlot(*copies_));
  const uint64_t bytes = plan_->PayloadSpan(layers).value();
  std::vector<DeviceCopy> copies;
  std::vector<PagedBlock> staged(blocks.begin(), blocks.end());
  for (size_t i = 0; i < blocks.size(); ++i) {
    staged[i].payload = slot->address + i * payload_stride_;
    copies.push_back({staged[i].payload, blocks[i].payload, bytes});
  }
  LARDER_RETURN_IF_ERROR(copies_->CopyBatch(CopyDirection::kToDevice, copies));
  LARDER_ASSIGN_OR_RETURN(const auto copied, copies_->Record());
  LARDER_RETURN_IF_ERROR(moves_->WaitFor(*copied));
  LARDER_RETURN_IF_ERROR(moves_->Scatter(*plan_, {layers, staged, options_.multiprocessors}));
  LARDER_ASSIGN_OR_RETURN(slot->free, moves_->Record());
  return moves_->Record();
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> PagedCache::QueueStore(
    std::span<const PagedBlock> blocks) {
  const LayerRange all{0, plan_->layers()};
  if (copies_runs_) return CopyRuns(blocks, all, /*to_device=*/false);
  if (in_place_) {
    LARDER_RETURN_IF_ERROR(moves_->Gather(*plan_, {all, blocks, options_.multiprocessors}));
    return moves_->Record();
  }
  LARDER_ASSIGN_OR_RETURN(Slot* const slot, NextSlot(*moves_));
  const uint64_t bytes = plan_->PayloadSpan(all).value();
  std::vector<DeviceCopy> copies;
  std::vector<PagedBlock> staged(blocks.begin(), blocks.end());
  for (size_t i = 0; i < blocks.size(); ++i) {
    staged[i].payload = slot->address + i * payload_stride_;
    copies.push_back({blocks[i].payload, staged[i].payload, bytes});
  }
  LARDER_RETURN_IF_ERROR(moves_->Gather(*plan_, {all, staged, options_.multiprocessors}));
  LARDER_ASSIGN_OR_RETURN(const auto gathered, moves_->Record());
  LARDER_RETURN_IF_ERROR(copies_->WaitFor(*gathered));
  LARDER_RETURN_IF_ERROR(copies_->CopyBatch(CopyDirection::kFromDevice, copies));
  LARDER_ASSIGN_OR_RETURN(slot->free, copies_->Record());
  return copies_->Record();
}

absl::StatusOr<PagedLoad> PagedCache::Load(std::span<const PagedGet> blocks, LayerRange layers,
                                           const DeviceEvent* pages_free,
                                           const CallOptions& options, PageWrites* writes) {
  if (blocks.size() > kLoadBlocksMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        blocks.size(), " blocks in one load; split it, the limit is ", kLoadBlocksMax));
  }
  std::vector<PagedBlock> places;
  for (const PagedGet& block : blocks) places.push_back({0, block.pages, block.first_slot});
  LARDER_RETURN_IF_ERROR(plan_->Check(layers, places));
  LARDER_RETURN_IF_ERROR(WaitBefore(pages_free));
  // A session that does not read in place maps no slabs for reading.  It has at most a staging
  // segment, which is not registered with the device and may be smaller than the wanted blocks
  // together.
  if (session_.read_mode() != ReadMode::kMapped)
    return LoadThroughBuffer(blocks, layers, options, writes);
  std::vector<Digest> digests;
  for (const PagedGet& block : blocks) digests.push_back(block.digest);
  CallOptions with_tables = options;
  with_tables.tables = true;
  LARDER_ASSIGN_OR_RETURN(Lease lease, session_.Acquire(variant_, digests, with_tables));
  PagedLoad load;
  load.lease_ = std::move(lease);
  LARDER_RETURN_IF_ERROR(Queue(load, blocks, layers, writes));
  return load;
}

absl::Status PagedCache::LoadMore(PagedLoad& load, std::span<const PagedGet> blocks,
                                  LayerRange layers) {
  if (load.lease_.size() != blocks.size())
    return absl::InvalidArgumentError("these are not the blocks of a load that reads in place");
  std::vector<PagedBlock> places;
  for (const PagedGet& block : blocks) places.push_back({0, block.pages, block.first_slot});
  LARDER_RETURN_IF_ERROR(plan_->Check(layers, places));
  return Queue(load, blocks, layers, nullptr);
}

absl::Status PagedCache::Queue(PagedLoad& load, std::span<const PagedGet> blocks, LayerRange layers,
                               PageWrites* writes) {
  load.status_.resize(blocks.size());
  std::vector<PagedBlock> step;
  std::vector<uint32_t> in_step;
  const auto flush = [&]() -> absl::Status {
    if (step.empty()) return absl::OkStatus();
    LARDER_ASSIGN_OR_RETURN(auto event, LoadStep(step, layers));
    load.steps_.push_back({std::move(event), std::exchange(in_step, {})});
    step.clear();
    return absl::OkStatus();
  };
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    load.status_[i] = load.lease_.status(i);
    if (load.status_[i] != BlockStatus::kOk) continue;
    const SegmentTable* table = load.lease_.Table(i);
    if (table == nullptr || !SameSegments(*table, payload_.table) ||
        load.lease_.View(i).size() != payload_bytes_) {
      load.status_[i] = BlockStatus::kInvalid;
      continue;
    }
    if (writes != nullptr && !writes->Begin(i)) {
      load.status_[i] = BlockStatus::kCancelled;
      continue;
    }
    step.push_back({AddressOf(load.lease_.View(i)) + plan_->PayloadBegin(layers).value(),
                    blocks[i].pages, blocks[i].first_slot});
    in_step.push_back(i);
    if (step.size() == BlocksPerStep()) LARDER_RETURN_IF_ERROR(flush());
  }
  return flush();
}

std::vector<std::span<std::byte>> PagedCache::BufferSegments(size_t i) const {
  std::vector<std::span<std::byte>> segments;
  const std::span payload(const_cast<std::byte*>(buffer_->bytes().data()) + i * payload_stride_,
                          payload_bytes_);
  SegmentCursor at;
  for (const Segment& segment : payload_.table.segments)
    segments.push_back(at.Next(payload, segment.bytes));
  return segments;
}

absl::StatusOr<PagedLoad> PagedCache::LoadThroughBuffer(std::span<const PagedGet> blocks,
                                                        LayerRange layers,
                                                        const CallOptions& options,
                                                        PageWrites* writes) {
  const TimePoint until = DeadlineOf(options);
  PagedLoad load;
  for (size_t first = 0; first < blocks.size(); first += BlocksPerStep()) {
    const auto part = blocks.subspan(first, std::min(BlocksPerStep(), blocks.size() - first));
    std::vector<std::vector<std::span<std::byte>>> segments;
    std::vector<GetBlock> gets;
    for (size_t i = 0; i < part.size(); ++i) segments.push_back(BufferSegments(i));
    for (size_t i = 0; i < part.size(); ++i) gets.push_back({part[i].digest, segments[i]});
    const absl::StatusOr<CallOptions> call = Until(options, until);
    if (!call.ok()) {
      load.status_.resize(blocks.size(), BlockStatus::kCancelled);
      return load;
    }
    LARDER_ASSIGN_OR_RETURN(auto got, session_.Get(variant_, gets, *call));
    std::vector<PagedBlock> step;
    std::vector<uint32_t> in_step;
    for (size_t i = 0; i < part.size(); ++i) {
      const bool refused =
          got[i] == BlockStatus::kOk && writes != nullptr && !writes->Begin(first + i);
      load.status_.push_back(refused ? BlockStatus::kCancelled : got[i]);
      if (load.status_.back() != BlockStatus::kOk) continue;
      step.push_back({AddressOf(segments[i].front()) + plan_->PayloadBegin(layers).value(),
                      part[i].pages, part[i].first_slot});
      in_step.push_back(static_cast<uint32_t>(first + i));
    }
    if (step.empty()) continue;
    LARDER_ASSIGN_OR_RETURN(auto event, LoadStep(step, layers));
    // The next step uses the buffer again.
    if (const absl::Status ok = event->Wait(std::chrono::steady_clock::time_point::max());
        !ok.ok()) {
      Drain();
      return ok;
    }
    load.steps_.push_back({std::move(event), std::move(in_step)});
  }
  return load;
}

absl::StatusOr<std::vector<BlockStatus>> PagedCache::Put(std::span<const PagedPut> blocks,
                                                         const DeviceEvent* computed,
                                                         const CallOptions& options,
                                                         PageReads* reads) {
  std::vector<PagedBlock> places;
  for (const PagedPut& block : blocks) places.push_back({0, block.pages, block.first_slot});
  LARDER_RETURN_IF_ERROR(plan_->Check({0, plan_->layers()}, places));
  LARDER_RETURN_IF_ERROR(WaitBefore(computed));
  const TimePoint until = DeadlineOf(options);
  std::vector<BlockStatus> result;
  for (size_t first = 0; first < blocks.size(); first += BlocksPerStep()) {
    const auto part = blocks.subspan(first, std::min(BlocksPerStep(), blocks.size() - first));
    LARDER_ASSIGN_OR_RETURN(const auto put, buffer_ == nullptr
                                                ? PutInPlace(part, options, until, reads)
                                                : PutThroughBuffer(part, options, until, reads));
    result.insert(result.end(), put.begin(), put.end());
  }
  return result;
}

absl::Status PagedCache::ReadPages(std::span<const PagedBlock> step, PageReads* reads,
                                   bool* in_doubt) {
  if (reads != nullptr && !reads->Begin())
    return absl::CancelledError("the pages may not be read any more");
  const auto event = StoreStep(step);
  absl::Status read = event.status();
  if (event.ok()) read = (*event)->Wait(std::chrono::steady_clock::time_point::max());
  *in_doubt = !read.ok() && !Drain();
  if (reads != nullptr && !*in_doubt) reads->End();
  return read;
}

absl::StatusOr<std::vector<BlockStatus>> PagedCache::PutInPlace(std::span<const PagedPut> blocks,
                                                                const CallOptions& options,
                                                                TimePoint until, PageReads* reads) {
  const std::vector<ByteCount> bytes(blocks.size(), ByteCount(payload_bytes_));
  std::vector<Digest> names;
  for (const PagedPut& block : blocks) names.push_back(block.digest);
  LARDER_ASSIGN_OR_RETURN(const CallOptions reserve, Until(options, until));
  LARDER_ASSIGN_OR_RETURN(Reservation reservation,
                          session_.Reserve(variant_, names, bytes, reserve));
  std::vector<PagedBlock> step;
  std::vector<Reservation::Block> published;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::span<std::byte> extent = reservation.Bytes(i);
    if (!reservation.Taken(i))
      step.push_back({AddressOf(extent), blocks[i].pages, blocks[i].first_slot});
    published.push_back({.extent = static_cast<uint32_t>(i),
                         .digest = blocks[i].digest,
                         .parent = blocks[i].parent,
                         .tokens = blocks[i].tokens,
                         .table = payload_.table,
                         .content = blocks[i].content});
  }
  if (step.empty()) return std::vector<BlockStatus>(blocks.size(), BlockStatus::kDuplicate);
  bool in_doubt = false;
  const absl::Status stored = ReadPages(step, reads, &in_doubt);
  if (in_doubt) in_doubt_.push_back(std::move(reservation));
  LARDER_RETURN_IF_ERROR(stored);
  // The padding is zeroed last, because the device's copies may also have copied what its staging
  // memory had between the segments.
  for (size_t i = 0; i < blocks.size(); ++i)
    if (!reservation.Taken(i)) ZeroPadding(reservation.Bytes(i), payload_.table);
  LARDER_ASSIGN_OR_RETURN(const CallOptions publish, Until(options, until));
  return reservation.Publish(variant_, published, publish);
}

absl::StatusOr<std::vector<BlockStatus>> PagedCache::PutThroughBuffer(
    std::span<const PagedPut> blocks, const CallOptions& options, TimePoint until,
    PageReads* reads) {
  std::vector<PagedBlock> step;
  std::vector<std::vector<std::span<const std::byte>>> layers(blocks.size());
  std::vector<PutBlock> puts;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::vector<std::span<std::byte>> segments = BufferSegments(i);
    step.push_back({AddressOf(segments.front()), blocks[i].pages, blocks[i].first_slot});
    layers[i].assign(segments.begin(), segments.end());
    puts.push_back({.digest = blocks[i].digest,
                    .parent = blocks[i].parent,
                    .tokens = blocks[i].tokens,
                    .segments = layers[i],
                    .content = blocks[i].content});
  }
  bool in_doubt = false;  // the buffer stays as long as the cache
  LARDER_RETURN_IF_ERROR(ReadPages(step, reads, &in_doubt));
  LARDER_ASSIGN_OR_RETURN(const CallOptions call, Until(options, until));
  return session_.Put(variant_, puts, call);
}

}  // namespace larder
