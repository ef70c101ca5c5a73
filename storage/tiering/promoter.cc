#include "storage/tiering/promoter.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "storage/check.h"
#include "storage/disk/page_buffer.h"
#include "storage/thread_priority.h"

namespace larder {
namespace {

// For each second that a job has waited, it counts as this many bytes smaller.
constexpr double kForgivenBytesPerSecond = 1e9;

}  // namespace

Promoter::Promoter(size_t threads, BlockStore& store, DiskTier& tier, const Clock& clock,
                   size_t waiting_max)
    : store_(store), tier_(tier), clock_(clock), shares_(std::make_shared<Shares>(waiting_max)) {
  for (size_t i = 0; i < std::max<size_t>(1, threads); ++i)
    threads_.emplace_back([this] { Run(); });
}

Promoter::~Promoter() {
  std::vector<RunningRef> jobs;
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  {
    MutexLock lock(mu_);
    jobs.swap(jobs_);
  }
  for (const RunningRef& running : jobs) {
    for (size_t i = running->next; i < running->job.blocks.size(); ++i)
      Answer(running, i, BlockStatus::kCancelled, {});
  }
}

Promoter::Prepared Promoter::Prepare(Job job) {
  constexpr ByteCount kRemainingMax = GiB(1024);  // `remaining` comes from a client
  if (!shares_->Take(job.session, job.blocks.size())) {
    MutexLock lock(mu_);
    stats_.refused += job.blocks.size();
    return nullptr;
  }
  auto running = std::make_shared<Running>(store_, shares_, std::move(job));
  std::vector<EntryRef> refs;
  for (const Wanted& wanted : running->job.blocks) {
    refs.push_back(wanted.ref);
    running->left += wanted.bytes;
  }
  running->known.resize(refs.size());
  running->left += std::min(running->job.remaining, kRemainingMax);
  if (!store_.HoldAgain(refs)) return nullptr;
  running->held = std::move(refs);
  return running;
}

bool Promoter::Shares::Take(SessionId session, size_t blocks) {
  if (blocks == 0) return true;
  MutexLock lock(mu_);
  const auto known = of_.find(session);
  const size_t mine = known == of_.end() ? 0 : known->second;
  const size_t others = waiting_ - mine;
  if (others >= waiting_max_ || mine + blocks > (waiting_max_ - others) / 2) return false;
  waiting_ += blocks;
  of_[session] += blocks;
  return true;
}

void Promoter::Shares::GiveBack(SessionId session, size_t blocks) {
  if (blocks == 0) return;
  MutexLock lock(mu_);
  waiting_ -= blocks;
  const auto mine = of_.find(session);
  mine->second -= blocks;
  if (mine->second == 0) of_.erase(mine);
}

size_t Promoter::Shares::waiting() const {
  MutexLock lock(mu_);
  return waiting_;
}

void Promoter::Submit(Prepared prepared) {
  if (prepared->job.blocks.empty()) return;
  MutexLock lock(mu_);
  prepared->since = clock_.Now();
  prepared->submitted = true;
  jobs_.push_back(std::move(prepared));
  wake_.NotifyAll();
}

void Promoter::Cancel(const Prepared& prepared) { prepared->cancelled = true; }

size_t Promoter::Described(const Prepared& prepared) {
  return static_cast<size_t>(std::ranges::count_if(
      prepared->known, [](const auto& description) { return description.has_value(); }));
}

Promoter::RunningRef Promoter::Next() {
  const TimePoint now = clock_.Now();
  RunningRef best;
  double best_left = 0;
  for (const RunningRef& running : jobs_) {
    if (running->describing) continue;
    const double waited = std::chrono::duration<double>(now - running->since).count();
    const double left =
        static_cast<double>(running->left.value()) - waited * kForgivenBytesPerSecond;
    if (best && left >= best_left) continue;
    best = running;
    best_left = left;
  }
  return best;
}

void Promoter::Run() {
  pthread_setname_np(pthread_self(), "promoter");
  // A request that reads from disk takes milliseconds.  An engine's scheduler, on the same cores,
  // answers within one.
  SetThreadPriority(ThreadPriority::kYielding);
  PayloadCodec codec;
  for (;;) {
    RunningRef running;
    size_t block = 0;
    bool describe = false;
    {
      MutexLock lock(mu_);
      while (!stop_ && !(running = Next())) wake_.Wait(mu_);
      if (stop_) return;
      describe = running->next == running->described;
      if (describe) {
        running->describing = true;
        block = running->next;
      } else {
        block = running->next++;
        if (running->next == running->job.blocks.size()) std::erase(jobs_, running);
      }
    }
    if (!describe) {
      PromoteOne(running, block, codec);
      continue;
    }
    Describe(*running, block);
    MutexLock lock(mu_);
    running->describing = false;
    running->described = std::min(block + kDescribedAtOnce, running->job.blocks.size());
    wake_.NotifyAll();
  }
}

// Looks up many blocks at once, since one call of DiskTier::Describe is cheaper than many.
void Promoter::Describe(Running& running, size_t first) {
  const std::span<const Wanted> blocks = std::span(running.job.blocks).subspan(first);
  const Digest variant = store_.index().VariantId(running.job.variant);
  std::vector<DiskAddress> addresses;
  for (const Wanted& wanted : blocks.first(std::min(kDescribedAtOnce, blocks.size())))
    addresses.push_back({{variant, wanted.digest}, DiskLocation{wanted.location}});
  const std::span known = std::span(running.known).subspan(first, addresses.size());
  if (running.cancelled) return;
  if (worth_asking()) {
    if (tier_.Describe(addresses, known).ok()) return;
    // If some blocks were found, only a part of the disk has failed, and blocks on other parts can
    // be read.
    if (std::ranges::none_of(known, [](const auto& one) { return one.has_value(); }))
      breaker_.Failed(clock_.Now());
  }
  running.readable = false;
}

void Promoter::PromoteOne(const RunningRef& running, size_t block, PayloadCodec& codec) {
  const Wanted& wanted = running->job.blocks[block];
  if (running->cancelled) return Answer(running, block, BlockStatus::kCancelled, {});
  bool mine = false;
  {
    MutexLock lock(mu_);
    const auto reading = reading_.find(wanted.ref.value);
    if (reading != reading_.end()) {
      reading->second.push_back({running, block});
      ++stats_.joined;
      return;
    }
    mine = store_.index().BeginPromote(wanted.ref);
    if (mine) reading_[wanted.ref.value];
  }
  BlockIndex::Held held;
  if (!mine) {
    // The block is in HOST by now, or it has lost its name.
    held = store_.index().LookAt(wanted.ref);
    Answer(running, block, InHost(held.state) ? BlockStatus::kOk : BlockStatus::kMissing, held);
    return;
  }
  const BlockStatus status = Read(*running, block, codec, &held);
  if (status == BlockStatus::kDamaged) {
    store_.DropDamaged(wanted.ref, Tier::kDisk);
  } else if (status != BlockStatus::kOk) {
    store_.index().FailPromote(wanted.ref);
  }
  Count(status, wanted.bytes);
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mu_);
    if (status == BlockStatus::kOk) suspects_.erase(wanted.location);
    const auto reading = reading_.find(wanted.ref.value);
    waiters = std::move(reading->second);
    reading_.erase(reading);
  }
  Answer(running, block, status, held);
  for (const Waiter& waiter : waiters) Answer(waiter.running, waiter.block, status, held);
}

bool Promoter::Exclude(EntryRef held, uint64_t location) {
  MutexLock lock(mu_);
  if (reading_.contains(held.value) || !store_.index().BeginRewrite(held, location)) return false;
  reading_[held.value];
  return true;
}

bool Promoter::Readmit(EntryRef held, uint64_t location, PayloadCodec& codec) {
  const bool written = store_.index().FinishRewrite(held, location);
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mu_);
    const auto reading = reading_.find(held.value);
    waiters = std::move(reading->second);
    reading_.erase(reading);
  }
  for (const Waiter& waiter : waiters) PromoteOne(waiter.running, waiter.block, codec);
  return written;
}

std::optional<DiskTier::Description> Promoter::TakeDescription(Running& running, size_t block,
                                                               const DiskAddress& address) {
  std::optional<DiskTier::Description> known = std::move(running.known[block]);
  running.known[block].reset();
  // If the record was rewritten at another place since the job was made, the description may be of
  // the old record or of the new one, so the description is looked up again.
  if (static_cast<uint64_t>(address.location) != running.job.blocks[block].location &&
      !tier_.Describe({&address, 1}, {&known, 1}).ok()) {
    running.readable = false;
    return std::nullopt;
  }
  return known;
}

DiskTier::GetStatus Promoter::GetDecoded(const DiskAddress& address, const RecordHeader& header,
                                         PayloadCodec& codec, std::span<std::byte> to,
                                         SegmentTable* table) {
  const ByteCount bytes = header.table.PayloadBytes();
  const SegmentRange all{0, static_cast<uint32_t>(header.table.segments.size()), 0, bytes.value()};
  *table = header.table;
  if (!table->encoded())
    return tier_.Get({.block = address, .header = &header, .range = all, .to = to});
  const PageBuffer stored(PagesFor(bytes));
  const DiskTier::GetStatus status =
      tier_.Get({.block = address, .header = &header, .range = all, .to = stored.bytes()});
  if (status != DiskTier::GetStatus::kOk) return status;
  return codec.Decode(stored.bytes(), header.table, to, table).ok() ? status
                                                                    : DiskTier::GetStatus::kDamaged;
}

BlockStatus Promoter::Read(Running& running, size_t block, PayloadCodec& codec,
                           BlockIndex::Held* held) {
  const Wanted& wanted = running.job.blocks[block];
  const DiskAddress address{
      .key = {store_.index().VariantId(running.job.variant), wanted.digest},
      .location = DiskLocation{store_.index().LookAt(wanted.ref).disk_location}};
  const std::optional<DiskTier::Description> known = TakeDescription(running, block, address);
  if (!worth_asking()) return BlockStatus::kMissing;
  if (!known) return running.readable ? BlockStatus::kDamaged : BlockStatus::kMissing;
  if (!codec.CanDecode(known->header.table)) return BlockStatus::kMissing;
  const ByteCount bytes = known->header.table.Decoded().PayloadBytes();
  BlockStore::ReserveResult room = store_.Reserve({&bytes, 1}, store_.pool().total_bytes());
  // The block is empty or larger than a slab.
  if (room.status == BlockStatus::kInvalid) return BlockStatus::kMissing;
  if (room.status != BlockStatus::kOk) return BlockStatus::kFull;
  SegmentTable table;
  switch (
      GetDecoded(address, known->header, codec, store_.Bytes(room.reservation.extent(0)), &table)) {
    case DiskTier::GetStatus::kOk:
      break;
    case DiskTier::GetStatus::kMissing:
    case DiskTier::GetStatus::kDamaged:
      return BlockStatus::kDamaged;
    case DiskTier::GetStatus::kFailed:
      return Failed(wanted);
  }
  breaker_.Succeeded();
  auto metadata = BlockMetadata::Make(known->header.parent, known->tokens, table,
                                      known->header.content, {.uid = known->header.writer_uid});
  if (!store_.FinishPromote(wanted.ref, room.reservation, std::move(metadata)))
    return BlockStatus::kMissing;
  *held = store_.index().LookAt(wanted.ref);
  // The disk tier's owner word for the record may still name an earlier index entry of this block
  // (BlockIndex::DropHostCopy).
  tier_.SetOwner(address.location, wanted.ref.value);
  return BlockStatus::kOk;
}

// A failed read counts as a failure of the disk, unless this block fails again and again while
// other blocks can be read: it then counts as damaged.
BlockStatus Promoter::Failed(const Wanted& wanted) {
  constexpr size_t kSuspectsMax = 4096;
  constexpr int kFailuresMax = 4;
  MutexLock lock(mu_);
  if (suspects_.size() >= kSuspectsMax) suspects_.clear();
  Suspect& suspect = suspects_[wanted.location];
  if (suspect.failures > 0 && stats_.promoted == suspect.promoted) suspect.failures = 0;
  suspect.promoted = stats_.promoted;
  if (++suspect.failures < kFailuresMax) {
    breaker_.Failed(clock_.Now());
    return BlockStatus::kMissing;
  }
  suspects_.erase(wanted.location);
  return BlockStatus::kDamaged;
}

void Promoter::Answer(const RunningRef& running, size_t block, BlockStatus status,
                      const BlockIndex::Held& held) {
  const Wanted& wanted = running->job.blocks[block];
  running->known[block].reset();  // set if this job did not read the block itself
  running->job.ready(wanted, status, held);
  MutexLock lock(mu_);
  running->left -= wanted.bytes;
  shares_->GiveBack(running->job.session, 1);
}

void Promoter::Count(BlockStatus status, ByteCount bytes) {
  MutexLock lock(mu_);
  switch (status) {
    case BlockStatus::kOk:
      ++stats_.promoted;
      stats_.promoted_bytes += bytes;
      break;
    case BlockStatus::kDamaged:
      ++stats_.damaged;
      break;
    case BlockStatus::kFull:
      ++stats_.full;
      break;
    default:
      ++stats_.missing;
      break;
  }
}

Promoter::Stats Promoter::stats() const {
  MutexLock lock(mu_);
  Stats stats = stats_;
  stats.waiting = shares_->waiting();
  stats.breaker_opened = breaker_.times_opened();
  return stats;
}

}  // namespace larder
