#include "storage/tiering/spiller.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/container/btree_map.h"
#include "storage/check.h"
#include "storage/format/record.h"
#include "storage/thread_priority.h"

namespace larder {
namespace {

constexpr size_t kErasuresAtOnce = 1024;
// MakeRoom evicts 1 / kSlices of its `wanted` bytes at a time, and at most about kBytesMax times
// `wanted`.
constexpr uint64_t kBytesMax = 8;
constexpr uint64_t kSlices = 4;
// A batch ends after this many puts in a row that found no space for any of its blocks.
constexpr int kTries = 4;
// A block is dropped when it has been postponed this often.  It is not dropped at once, because
// another thread may have taken the space that this thread had freed.
constexpr uint8_t kPostponedMax = 8;
constexpr uint8_t kFailedAloneMax = 8;

DiskAddress AddressOf(const BlockStore& store, const FreedExtent& freed) {
  return {.key = {.variant = store.index().VariantId(freed.variant), .digest = freed.digest},
          .location = DiskLocation{freed.location}};
}

}  // namespace

struct Spiller::Block {
  Item item;
  EntryRef ref;
  RecordHeader header;
  std::span<const uint32_t> tokens;
  std::span<const std::byte> payload;
};

struct Spiller::Batch {
  std::vector<Name> names;  // the names that this batch has entered in `writing_`
  std::vector<Block> blocks;
  std::vector<EntryRef> held;   // the holds on all blocks of the batch, written or not
  std::vector<Item> durable;    // on disk before this batch, or by it
  std::vector<Item> again;      // not written: the disk failed, or the spiller stops
  std::vector<Item> postponed;  // no space for these, or kNotNow; to be tried again
  ByteCount bytes;
};

Spiller::Spiller(const Options& options, BlockStore& store, DiskTier& tier, const Clock& clock,
                 Durable durable)
    : options_(options),
      store_(store),
      tier_(tier),
      clock_(clock),
      durable_(std::move(durable)),
      paused_(options.paused) {
  LARDER_CHECK(options.threads > 0);
  store.index().SetSpilling(true);
  for (size_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Run(); });
}

Spiller::~Spiller() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  store_.index().SetSpilling(false);
}

void Spiller::Offer(SessionId who, VariantIndex variant, const Digest& digest) {
  Queue({.who = who, .variant = variant, .digest = digest});
}

void Spiller::Offer(VariantIndex variant, const Digest& digest, Done done) {
  Queue({.who = {},
         .variant = variant,
         .digest = digest,
         .offered = std::make_shared<Offered>(std::move(done))});
}

void Spiller::Queue(Item item) {
  MutexLock lock(mu_);
  ++stats_.offered;
  if (queue_.size() >= options_.queue_max) {
    ++stats_.dropped_queue;
    return;
  }
  queue_.push_back(std::move(item));
  if (queue_.size() == 1) wake_.NotifyOne();
}

void Spiller::Resume() {
  MutexLock lock(mu_);
  paused_ = false;
  wake_.NotifyOne();
}

void Spiller::Nudge() {
  MutexLock lock(mu_);
  nudged_ = true;
  wake_.NotifyOne();
}

bool Spiller::WaitWritten(std::span<const Name> names, TimePoint until) {
  MutexLock lock(mu_);
  bool in_time = true;
  for (const Name& name : names) {
    while (writing_.contains(name)) {
      if (!in_time) return false;
      in_time = written_.WaitUntil(mu_, until);
    }
  }
  return true;
}

bool Spiller::WaitIdle(TimePoint until) {
  MutexLock lock(mu_);
  while (busy_ > 0 || nudged_ || !queue_.empty()) {
    if (!idle_.WaitUntil(mu_, until)) return false;
  }
  return true;
}

Spiller::Stats Spiller::stats() const {
  MutexLock lock(mu_);
  Stats stats = stats_;
  stats.queued = queue_.size() + writing_.size();
  stats.breaker_opened = breaker_.times_opened();
  return stats;
}

void Spiller::Run() {
  pthread_setname_np(pthread_self(), "spiller");
  SetThreadPriority(ThreadPriority::kBackground);
  while (WaitForWork()) {
    EraseFreedExtents();
    Batch batch;
    Fill(&batch);
    Write(&batch);
    MutexLock lock(mu_);
    --busy_;
  }
}

bool Spiller::WaitForWork() {
  MutexLock lock(mu_);
  for (;;) {
    if (stop_) return false;
    if (breaker_.open(clock_.Now())) {
      wake_.WaitUntil(mu_, breaker_.until());
      continue;
    }
    if (!paused_ && (!queue_.empty() || nudged_)) break;
    if (busy_ == 0) idle_.NotifyAll();
    wake_.Wait(mu_);
  }
  ++busy_;
  nudged_ = false;
  return true;
}

bool Spiller::Take(Batch* batch, Item* item) {
  MutexLock lock(mu_);
  while (!queue_.empty() && !stop_) {
    *item = queue_.front();
    queue_.pop_front();
    const Name name(item->variant, item->digest);
    const auto [at, first] = writing_.try_emplace(name);
    if (first) {
      batch->names.push_back(name);
      return true;
    }
    at->second.push_back(*item);
  }
  return false;
}

void Spiller::Fill(Batch* batch) {
  // A batch takes about 1 / kShareOfPool of the pool at most, since held blocks cannot be evicted.
  constexpr uint64_t kShareOfPool = 32;
  const ByteCount pool_share(store_.pool().total_bytes().value() / kShareOfPool);
  const ByteCount enough = std::min({options_.batch_bytes, tier_.batch_bytes(), pool_share});
  for (Item item; batch->bytes < enough && Take(batch, &item);) HoldItem(item, batch);
  MutexLock lock(mu_);
  if (!queue_.empty()) wake_.NotifyOne();
}

void Spiller::EraseFreedExtents() {
  MutexLock lock(erase_mu_);
  for (;;) {
    const std::vector<FreedExtent> freed = store_.TakeFreedExtents(kErasuresAtOnce);
    if (freed.empty()) return;
    std::vector<DiskAddress> blocks;
    blocks.reserve(freed.size());
    for (const FreedExtent& extent : freed) blocks.push_back(AddressOf(store_, extent));
    Erase(blocks);
  }
}

// If a part of the disk cannot erase, only space in that part stays allocated.  So the disk counts
// as failed only if the retry (Erase without blocks) succeeds in no part.
void Spiller::Erase(std::span<const DiskAddress> blocks) {
  if (!tier_.Erase(blocks).ok() && !tier_.Erase({}).ok()) Failed();
}

void Spiller::HoldItem(const Item& item, Batch* batch) {
  const BlockIndex::Held held = store_.HoldUntouched(item.variant, item.digest);
  if (held.ref.value == 0) {
    MutexLock lock(mu_);
    ++stats_.dropped_evicted;
  } else if (held.state != BlockState::kHost) {
    store_.Unhold({&held.ref, 1});
    if (item.offered) item.offered->on_disk = true;
    batch->durable.push_back(item);
  } else if (!AddBlock(item, held, batch)) {
    store_.Unhold({&held.ref, 1});
  }
}

bool Spiller::AddBlock(const Item& item, const BlockIndex::Held& held, Batch* batch) {
  const std::shared_ptr<const VariantSpec> spec = store_.SpecOf(item.variant);
  if (held.metadata == nullptr || !spec) return false;  // a record needs metadata and spec
  if (!store_.Check(
          held, {0, held.metadata->segment_count(), 0, held.metadata->payload_bytes().value()})) {
    store_.DropDamaged(held.ref);
    MutexLock lock(mu_);
    ++stats_.damaged;
    return false;
  }
  batch->held.push_back(held.ref);
  batch->bytes += held.extent.bytes();
  batch->blocks.push_back(
      {.item = item,
       .ref = held.ref,
       .header = {.key = {store_.index().VariantId(item.variant), item.digest},
                  .parent = held.metadata->parent(),
                  .content = held.metadata->content(),
                  .block_tokens = spec->block_tokens,
                  .first_layer = spec->first_layer,
                  .layout = spec->layout,
                  .dtype = spec->dtype,
                  .table = held.metadata->Table(),
                  .writer_uid = held.metadata->writer().uid},
       .tokens = held.metadata->tokens(),
       .payload = store_.Bytes(held.extent).first(held.metadata->payload_bytes().value())});
  return true;
}

void Spiller::Write(Batch* batch) {
  if (!batch->blocks.empty()) PutWithRoom(batch);
  store_.Unhold(batch->held);
  Release(*batch);
  // Destroying the last copy of an item calls its `done`.  The copies here are destroyed now, so
  // that callers do not wait for the erasures below.
  batch->again.clear();
  batch->postponed.clear();
  std::erase_if(batch->durable, [](const Item& item) { return !item.who; });
  EraseFreedExtents();
  Notify(*batch);
}

bool Spiller::IsWriting(VariantIndex variant, const Digest& digest) const {
  MutexLock lock(mu_);
  return writing_.contains(Name(variant, digest));
}

bool Spiller::Claim(VariantIndex variant, const Digest& digest) {
  MutexLock lock(mu_);
  return writing_.try_emplace(Name(variant, digest)).second;
}

void Spiller::Unclaim(std::span<const Name> names) {
  MutexLock lock(mu_);
  EndWriting(names);
  if (!queue_.empty()) wake_.NotifyOne();
}

void Spiller::EndWriting(std::span<const Name> names) {
  for (const Name& name : names) {
    const auto at = writing_.find(name);
    stats_.dropped_queue += Requeue(at->second);
    writing_.erase(at);
  }
  written_.NotifyAll();
}

void Spiller::Release(const Batch& batch) {
  MutexLock lock(mu_);
  EndWriting(batch.names);
  stats_.dropped_failed += Requeue(batch.again);
  stats_.dropped_room += Requeue(batch.postponed);
  // Wakes another thread for the items in the queue, since this thread has more to do before it
  // takes any.
  if (!queue_.empty()) wake_.NotifyOne();
}

size_t Spiller::Requeue(std::span<const Item> items) {
  const size_t room = options_.queue_max - std::min(options_.queue_max, queue_.size());
  const std::span<const Item> fit = items.first(std::min(room, items.size()));
  queue_.insert(queue_.end(), fit.begin(), fit.end());
  return items.size() - fit.size();
}

void Spiller::Failed() {
  breaker_.Failed(clock_.Now());
  store_.index().SetSpilling(false);
}

bool Spiller::stopping() const {
  MutexLock lock(mu_);
  return stop_;
}

void Spiller::PutWithRoom(Batch* batch) {
  MakeRoom(batch->bytes);
  std::vector<Block> left = std::move(batch->blocks);
  for (int in_vain = 0; in_vain < kTries && !left.empty();) {
    if (breaker_.open(clock_.Now()) || stopping()) {
      for (const Block& block : left) batch->again.push_back(block.item);
      return;
    }
    const size_t before = left.size();
    left = PutOnce(std::move(left), batch);
    in_vain = left.size() < before ? 0 : in_vain + 1;
    if (left.empty()) return;
    ByteCount bytes;
    for (const Block& block : left) bytes += ByteCount(block.payload.size());
    MakeRoom(bytes);
    // This put found no space for any block, perhaps because the free space is scattered.
    if (in_vain > 0) MakeWindows(left);
  }
  for (Block& block : left) Postpone(std::move(block.item), batch);
}

void Spiller::Postpone(Item item, Batch* batch) {
  if (++item.postponed < kPostponedMax) {
    batch->postponed.push_back(item);
    return;
  }
  MutexLock lock(mu_);
  ++stats_.dropped_room;
}

// Tries to make space for `bytes`, and for an eighth of `bytes` and 1 MiB more: for headers, and
// because part of the free space is scattered.
void Spiller::MakeRoom(ByteCount bytes) {
  const ByteCount wanted(bytes.value() + bytes.value() / 8 + MiB(1).value());
  const ByteCount slice(wanted.value() / kSlices);
  if (tier_.free_bytes() >= wanted) return;
  // First erases what earlier calls failed to erase: while the disk cannot erase, more evictions
  // free no space.
  if (!tier_.Erase({}).ok()) Failed();
  for (uint64_t i = 0; i < kSlices * kBytesMax && tier_.free_bytes() < wanted; ++i) {
    if (breaker_.open(clock_.Now()) || stopping()) return;
    if (store_.EvictFromDisk(slice) == slice) return;  // no block may be evicted
    EraseFreedExtents();
  }
}

// Blocks that this batch has just written are still held, so FindVictims does not choose them.
void Spiller::MakeWindows(std::span<const Block> blocks) {
  ByteCount largest;
  for (const Block& block : blocks) largest = std::max(largest, ByteCount(block.payload.size()));
  for (size_t i = 0; i < blocks.size() && !breaker_.open(clock_.Now()); ++i) {
    const std::vector<uint32_t> victims = tier_.FindVictims(
        largest, [&](uint32_t owner) { return store_.WorthOnDisk(EntryRef{owner}); });
    if (victims.empty()) return;
    std::vector<EntryRef> refs;
    for (const uint32_t owner : victims) refs.push_back(EntryRef{owner});
    store_.EvictFromDisk(refs);
    EraseFreedExtents();
  }
}

// Returns the blocks that found no space.
std::vector<Spiller::Block> Spiller::PutOnce(std::vector<Block> blocks, Batch* batch) {
  std::vector<DiskTier::NewBlock> news;
  for (const Block& block : blocks)
    news.push_back({.header = &block.header, .tokens = block.tokens, .payload = block.payload});
  std::vector<DiskTier::PutResult> results(news.size());
  tier_.Put(news, results);
  std::vector<Block> without_space;
  bool failed = false, written = false;
  for (const DiskTier::PutResult& result : results) {
    failed = failed || result.status == DiskTier::PutStatus::kFailed;
    written = written || result.status == DiskTier::PutStatus::kOk;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    switch (results[i].status) {
      case DiskTier::PutStatus::kOk:
        Settle(blocks[i], results[i].location, batch);
        break;
      case DiskTier::PutStatus::kNoRoom:
        without_space.push_back(std::move(blocks[i]));
        break;
      case DiskTier::PutStatus::kFailed:
        TryAgain(blocks[i].item, written, batch);
        break;
      case DiskTier::PutStatus::kNotNow:
        // kNotNow is no failure of the disk, so it does not open breaker_.
        Postpone(std::move(blocks[i].item), batch);
        break;
      case DiskTier::PutStatus::kTaken:
        store_.DropDamaged(blocks[i].ref, Tier::kDisk);
        [[fallthrough]];
      case DiskTier::PutStatus::kTooLarge: {
        MutexLock lock(mu_);
        ++stats_.dropped_room;
        break;
      }
    }
  }
  if (written) {
    ++puts_;
    breaker_.Succeeded();
    store_.index().SetSpilling(true);
  }
  if (failed) Failed();
  return without_space;
}

// A block that the disk can never write must not keep opening breaker_, which stops the writes of
// all blocks; so such a block is dropped in the end.
void Spiller::TryAgain(Item item, bool mates_written, Batch* batch) {
  const uint64_t puts = puts_;
  const uint64_t before = item.failed_after.value_or(puts);
  item.failed_after = puts + (mates_written ? 1 : 0);  // `puts_` does not count this put yet
  if ((mates_written || puts != before) && ++item.failed_alone > kFailedAloneMax) {
    MutexLock lock(mu_);
    ++stats_.dropped_failed;
  } else {
    batch->again.push_back(item);
  }
}

void Spiller::Settle(const Block& block, DiskLocation location, Batch* batch) {
  const std::optional<uint64_t> former =
      store_.SetOnDisk(block.ref, static_cast<uint64_t>(location));
  if (former) {
    tier_.SetOwner(location, block.ref.value);
    if (block.item.offered) block.item.offered->on_disk = true;
    batch->durable.push_back(block.item);
    MutexLock lock(mu_);
    ++stats_.spilled;
    stats_.spilled_bytes += ByteCount(block.payload.size());
  }
  if (former == 0) return;
  // Erases the new record if the block has left HOST meanwhile, otherwise the block's former
  // record.
  const DiskAddress gone{block.header.key, former ? DiskLocation{*former} : location};
  Erase({&gone, 1});
}

void Spiller::Notify(const Batch& batch) const {
  absl::btree_map<std::pair<SessionId, VariantIndex>, std::vector<Digest>> by_session;
  for (const Item& item : batch.durable) {
    // The block may have been evicted from disk meanwhile.
    BlockIndex::Presence now;
    store_.index().Lookup(item.variant, {&item.digest, 1}, {&now, 1});
    if ((now.tiers & TierBit(Tier::kDisk)) == 0) continue;
    by_session[{item.who, item.variant}].push_back(item.digest);
  }
  for (const auto& [who, digests] : by_session) durable_(who.first, who.second, digests);
}

}  // namespace larder
