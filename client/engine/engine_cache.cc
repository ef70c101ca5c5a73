#include "client/engine/engine_cache.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"
#include "storage/time_left.h"

namespace larder {
namespace {

EngineCache::Options Clamped(EngineCache::Options options) {
  options.step_blocks = std::clamp<size_t>(options.step_blocks, 1, PagedCache::kLoadBlocksMax);
  return options;
}

// Waits for the engine's own work, which ends without Larder.  Returns false if the device failed,
// or a stop was requested.
bool AwaitReady(const DeviceEvent& ready, const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kLookEvery{20};
  while (!stop.stop_requested()) {
    const absl::Status done = ready.Wait(SteadyNow() + kLookEvery);
    if (!absl::IsDeadlineExceeded(done)) return done.ok();
  }
  return false;
}

uint32_t SlotOf(const std::vector<uint32_t>& slots, size_t block) {
  return slots.empty() ? 0 : slots[block];
}

class FencedReads final : public PageReads {
 public:
  FencedReads(PageFence* fence, uint64_t order) : fence_(fence), order_(order) {}
  [[nodiscard]] bool Begin() override { return fence_->BeginRead(order_); }
  void End() override { fence_->EndRead(); }

 private:
  PageFence* const fence_;
  const uint64_t order_;
};

}  // namespace

EngineCache::EngineCache(std::unique_ptr<PageStore> store, const Options& options)
    : store_(std::move(store)), options_(Clamped(options)) {
  for (uint32_t i = 0; i < options_.loaders + options_.storers; ++i) {
    const bool loads = i < options_.loaders;
    threads_.emplace_back([this, loads](const std::stop_token& stop) { Run(stop, loads); });
  }
}

EngineCache::~EngineCache() {
  for (std::jthread& thread : threads_) thread.request_stop();
  {
    MutexLock lock(mu_);
    for (const auto& [id, job] : jobs_) job->stop.request_stop();
    changed_.NotifyAll();
  }
  threads_.clear();
}

// ---- lookups

JobId EngineCache::BeginLookup(std::span<const Digest> steps, TokenCount first_token) {
  auto lookup = std::make_shared<Lookup>();
  bool asked = false;
  {
    MutexLock lock(lookup->mu);
    lookup->question = store_->Ask(steps, first_token);
    asked = lookup->question != nullptr;
  }
  MutexLock lock(mu_);
  ++stats_.lookups;
  if (!asked) ++stats_.refused;
  lookups_.emplace(++last_, std::move(lookup));
  return last_;
}

std::shared_ptr<EngineCache::Lookup> EngineCache::LookupOf(JobId id) {
  MutexLock lock(mu_);
  const auto known = lookups_.find(id);
  return known == lookups_.end() ? nullptr : known->second;
}

void EngineCache::CountAnswer(Lookup& lookup, TokenCount tokens, bool impatient) {
  if (std::exchange(lookup.counted, true)) return;
  MutexLock lock(mu_);
  ++(tokens > TokenCount() ? stats_.hits : stats_.misses);
  stats_.impatient += impatient ? 1 : 0;
  stats_.hit_tokens += tokens.value();
}

std::optional<EngineCache::Found> EngineCache::PollLookup(JobId id) {
  const std::shared_ptr<Lookup> lookup = LookupOf(id);
  if (lookup == nullptr) return Found{};
  MutexLock lock(lookup->mu);
  if (lookup->question == nullptr) {
    CountAnswer(*lookup, {}, /*impatient=*/false);
    return Found{};
  }
  PageStore::Question& question = *lookup->question;
  if (question.Poll()) {
    lookup->until.reset();
    CountAnswer(*lookup, question.tokens(), /*impatient=*/false);
    return Found{question.tokens(), question.promise(), question.pending()};
  }
  const TimePoint now = SteadyNow();
  if (!lookup->until) lookup->until = now + options_.lookup_patience;
  if (now < *lookup->until) return std::nullopt;
  question.GiveUp();
  lookup->question.reset();
  CountAnswer(*lookup, {}, /*impatient=*/true);
  return Found{};
}

std::vector<Tier> EngineCache::TiersOf(JobId id) {
  const std::shared_ptr<Lookup> lookup = LookupOf(id);
  if (lookup == nullptr) return {};
  MutexLock lock(lookup->mu);
  if (lookup->question == nullptr || !lookup->question->Poll()) return {};
  return lookup->question->tiers();
}

void EngineCache::EndLookup(JobId id) {
  std::shared_ptr<Lookup> ended;  // without the lock
  MutexLock lock(mu_);
  const auto known = lookups_.find(id);
  if (known == lookups_.end()) return;
  ended = std::move(known->second);
  lookups_.erase(known);
}

// ---- jobs

bool EngineCache::Job::Fits() const {
  const std::vector<uint32_t>& pages = loads ? load.pages : store.pages;
  const std::vector<uint32_t>& slots = loads ? load.first_slots : store.first_slots;
  if (pages.size() % blocks() != 0 || pages.empty()) return false;
  if (!slots.empty() && slots.size() != blocks()) return false;
  return loads || (store.content != nullptr && store.tokens.size() % blocks() == 0);
}

JobId EngineCache::Add(std::shared_ptr<Job> job) {
  const size_t blocks = job->blocks();
  job->until = job->begun + (job->loads ? job->load.deadline : job->store.deadline);
  MutexLock lock(mu_);
  job->id = ++last_;
  jobs_.emplace(job->id, job);
  size_t& waiting = job->loads ? stats_.loads_waiting : stats_.stores_waiting;
  const size_t most = job->loads ? options_.load_blocks_max : options_.store_blocks_max;
  if (blocks == 0) {
    Finish(job);
  } else if (!job->Fits()) {
    job->status.assign(blocks, BlockStatus::kInvalid);
    Finish(job);
  } else if (waiting + blocks > most) {
    job->status.assign(blocks, BlockStatus::kFull);
    job->cause = absl::ResourceExhaustedError("the queue is full");
    job->dropped = true;
    Finish(job);
  } else {
    waiting += blocks;
    Jobs& queue = job->loads ? loads_ : stores_;
    queue.insert(job->loads && job->load.by_layer ? queue.begin() : queue.end(), job);
    changed_.NotifyAll();
  }
  return job->id;
}

JobId EngineCache::BeginLoad(LoadJob load) { return Add(std::make_shared<Job>(std::move(load))); }

JobId EngineCache::BeginStore(StoreJob store) {
  return Add(std::make_shared<Job>(std::move(store)));
}

bool EngineCache::AwaitLayers(JobId load, uint32_t layers, TimePoint until) {
  MutexLock lock(mu_);
  for (bool late = false;; late = !changed_.WaitUntil(mu_, until)) {
    const auto known = jobs_.find(load);
    if (known == jobs_.end()) break;
    if (known->second->layers >= layers) return true;
    if (late) return false;
  }
  const auto ended = std::ranges::find(done_, load, &JobResult::job);
  return ended != done_.end() && std::ranges::all_of(ended->status, [](BlockStatus status) {
           return status == BlockStatus::kOk;
         });
}

std::vector<JobResult> EngineCache::Poll() {
  MutexLock lock(mu_);
  return std::exchange(done_, {});
}

bool EngineCache::Stop(JobId id) {
  const auto known = jobs_.find(id);
  if (known == jobs_.end()) return false;
  const std::shared_ptr<Job> job = known->second;
  job->stop.request_stop();
  if (!job->running) {
    std::erase(job->loads ? loads_ : stores_, job);
    (job->loads ? stats_.loads_waiting : stats_.stores_waiting) -= job->blocks();
    Finish(job);
    return false;
  }
  changed_.NotifyAll();
  return true;
}

void EngineCache::BeginCancel(JobId id) {
  MutexLock lock(mu_);
  (void)Stop(id);
}

void EngineCache::Cancel(JobId id) {
  MutexLock lock(mu_);
  if (!Stop(id)) return;
  while (jobs_.contains(id)) changed_.Wait(mu_);
}

void EngineCache::Finish(const std::shared_ptr<Job>& job) {
  job->status.resize(job->blocks(), BlockStatus::kCancelled);
  Count(*job);
  const TimePoint now = SteadyNow();
  const TimePoint taken = job->running ? job->taken : now;
  done_.push_back({.job = job->id,
                   .load = job->loads,
                   .status = std::move(job->status),
                   .cause = std::move(job->cause),
                   .waited = taken - job->begun,
                   .moved = now - taken});
  jobs_.erase(job->id);
  if (!job->loads && options_.fence != nullptr) options_.fence->CountEnded();
  changed_.NotifyAll();
}

void EngineCache::Count(const Job& job) {
  ++(job.loads ? stats_.loads_ended : stats_.stores_ended);
  for (const BlockStatus status : job.status) {
    const bool ok = status == BlockStatus::kOk;
    const bool given_up = status == BlockStatus::kCancelled && job.cause.ok();
    if (job.loads) {
      if (!given_up) ++(ok ? stats_.loaded : stats_.load_failed);
    } else {
      ++(ok                                  ? stats_.stored
         : status == BlockStatus::kDuplicate ? stats_.duplicates
         : given_up                          ? stats_.given_up
         : job.dropped                       ? stats_.dropped
                                             : stats_.store_failed);
    }
  }
}

EngineCache::Stats EngineCache::stats() const {
  MutexLock lock(mu_);
  Stats stats = stats_;
  stats.lookups_open = lookups_.size();
  return stats;
}

// ---- the threads

std::shared_ptr<EngineCache::Job> EngineCache::Next(const std::stop_token& stop, bool loads) {
  Jobs& waiting = loads ? loads_ : stores_;
  const TimePoint until = SteadyNow() + kRestEvery;
  MutexLock lock(mu_);
  while (waiting.empty() && !stop.stop_requested() && changed_.WaitUntil(mu_, until)) {
  }
  if (waiting.empty()) return nullptr;
  std::shared_ptr<Job> job = std::move(waiting.front());
  waiting.pop_front();
  (loads ? stats_.loads_waiting : stats_.stores_waiting) -= job->blocks();
  job->running = true;
  job->taken = SteadyNow();
  loading_ += loads ? 1 : 0;
  return job;
}

void EngineCache::Run(const std::stop_token& stop, bool loads) {
  std::unique_ptr<PageStore::Mover> mover;
  for (;;) {
    const std::shared_ptr<Job> job = Next(stop, loads);
    if (job == nullptr) {
      if (stop.stop_requested()) return;
      if (mover != nullptr) mover->Rest();
      continue;
    }
    if (mover == nullptr) {
      if (auto made = store_->MakeMover(); made.ok()) mover = *std::move(made);
    }
    Do(*job, mover.get());
    MutexLock lock(mu_);
    loading_ -= loads ? 1 : 0;
    Finish(job);
  }
}

void EngineCache::Do(Job& job, PageStore::Mover* mover) {
  if (mover == nullptr) {
    job.status.assign(job.blocks(), BlockStatus::kUnsupported);
    return;
  }
  const std::stop_token stop = job.stop.get_token();
  const auto& ready = job.loads ? job.load.ready : job.store.ready;
  if (ready != nullptr && !AwaitReady(*ready, stop)) return;
  if (job.loads && job.load.by_layer) return LoadLayers(job, *mover);
  while (job.status.size() < job.blocks() && !stop.stop_requested() && !Voided(job)) {
    Yield(job);
    if (SteadyNow() >= job.until) {
      job.cause = absl::DeadlineExceededError("the job took longer than its deadline");
      return;
    }
    const size_t first = job.status.size();
    const size_t count = std::min(options_.step_blocks, job.blocks() - first);
    const PageStore::Moved step = Step(job, first, count, *mover);
    LARDER_CHECK(step.status.size() == count);
    job.status.insert(job.status.end(), step.status.begin(), step.status.end());
    if (job.cause.ok()) job.cause = step.cause;
  }
}

// `all` has equally many entries for each block, in their order.  Returns those of `block`.
std::span<const uint32_t> EngineCache::Job::PartOf(const std::vector<uint32_t>& all,
                                                   size_t block) const {
  const size_t each = all.size() / blocks();
  return std::span(all).subspan(block * each, each);
}

std::vector<PagedGet> EngineCache::GetsOf(const Job& job, size_t first, size_t count) {
  const LoadJob& load = job.load;
  std::vector<PagedGet> gets;
  for (size_t i = first; i < first + count; ++i)
    gets.push_back({load.digests[i], job.PartOf(load.pages, i), SlotOf(load.first_slots, i)});
  return gets;
}

PageStore::Moved EngineCache::Step(const Job& job, size_t first, size_t count,
                                   PageStore::Mover& mover) const {
  const auto deadline = std::max(MillisecondsLeft(job.until), std::chrono::milliseconds(1));
  if (job.loads)
    return mover.Load(GetsOf(job, first, count), job.load.promise, deadline, job.stop.get_token(),
                      nullptr);
  const StoreJob& store = job.store;
  std::vector<PagedPut> puts;
  for (size_t i = first; i < first + count; ++i) {
    puts.push_back({.digest = store.digests[i],
                    .parent = i == 0 || !store.chained ? store.parent : store.digests[i - 1],
                    .tokens = job.PartOf(store.tokens, i),
                    .pages = job.PartOf(store.pages, i),
                    .first_slot = SlotOf(store.first_slots, i)});
  }
  FencedReads reads(options_.fence, store.order);
  return mover.Store(puts, *store.content, deadline, job.stop.get_token(),
                     options_.fence != nullptr && store.order != 0 ? &reads : nullptr);
}

void EngineCache::LoadLayers(Job& job, PageStore::Mover& mover) {
  class Told final : public PageStore::LayerArrivals {
   public:
    Told(EngineCache& cache, Job& job) : cache_(cache), job_(job) {}
    [[nodiscard]] bool Arrived(uint32_t layers) override {
      MutexLock lock(cache_.mu_);
      job_.layers = layers;
      cache_.changed_.NotifyAll();
      return !job_.stop.stop_requested();
    }

   private:
    EngineCache& cache_;
    Job& job_;
  };
  Told told(*this, job);
  const auto deadline = std::max(MillisecondsLeft(job.until), std::chrono::milliseconds(1));
  PageStore::Moved moved = mover.LoadLayers(GetsOf(job, 0, job.blocks()), job.load.promise,
                                            deadline, job.stop.get_token(), told);
  LARDER_CHECK(moved.status.size() == job.blocks());
  job.status = std::move(moved.status);
  job.cause = std::move(moved.cause);
}

bool EngineCache::Voided(const Job& job) const {
  return !job.loads && job.store.order != 0 && options_.fence != nullptr &&
         options_.fence->Voided(job.store.order);
}

void EngineCache::Yield(const Job& job) {
  if (job.loads) return;
  const TimePoint until = std::min(job.until, SteadyNow() + options_.yield_max);
  MutexLock lock(mu_);
  while ((loading_ > 0 || !loads_.empty()) && !job.stop.stop_requested()) {
    if (!changed_.WaitUntil(mu_, until)) return;
  }
}

}  // namespace larder
