#include "client/engine/engine_cache.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"

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
  lookup->until = SteadyNow() + options_.lookup_patience;
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

std::optional<EngineCache::Found> EngineCache::PollLookup(JobId id) {
  std::shared_ptr<Lookup> lookup;
  {
    MutexLock lock(mu_);
    const auto known = lookups_.find(id);
    if (known == lookups_.end()) return Found{};
    lookup = known->second;
  }
  MutexLock lock(lookup->mu);
  const bool first = !lookup->answer;
  bool impatient = false;
  if (lookup->question == nullptr) {
    lookup->answer = Found{};
  } else if (PageStore::Question& question = *lookup->question; question.Poll()) {
    // What was found may be gone by now, if the promise has ended.
    lookup->answer = Found{question.tokens(), question.promise(), question.pending()};
  } else if (SteadyNow() < lookup->until) {
    return std::nullopt;
  } else {
    question.GiveUp();
    lookup->question.reset();
    lookup->answer = Found{};
    impatient = true;
  }
  if (first) {
    MutexLock counting(mu_);
    const bool hit = lookup->answer->tokens > TokenCount();
    ++(hit ? stats_.hits : stats_.misses);
    stats_.impatient += impatient ? 1 : 0;
    stats_.hit_tokens += lookup->answer->tokens.value();
  }
  return lookup->answer;
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

JobId EngineCache::Add(std::shared_ptr<Job> job, bool fits) {
  job->id = ++last_;
  if (!fits || job->blocks() == 0) {
    job->status.assign(job->blocks(), BlockStatus::kFull);
    jobs_.emplace(job->id, job);
    Finish(job);
    return job->id;
  }
  (job->load() ? stats_.loads_waiting : stats_.stores_waiting) += job->blocks();
  (job->load() ? loads_ : stores_).push_back(job);
  jobs_.emplace(job->id, std::move(job));
  changed_.NotifyAll();
  return last_;
}

JobId EngineCache::BeginLoad(std::vector<LoadBlock> blocks, LeaseId promise) {
  auto job = std::make_shared<Job>();
  job->loads = std::move(blocks);
  job->promise = promise;
  MutexLock lock(mu_);
  const bool fits = stats_.loads_waiting + job->blocks() <= options_.load_blocks_max;
  return Add(std::move(job), fits);
}

JobId EngineCache::BeginStore(std::vector<StoreBlock> blocks,
                              std::shared_ptr<const DeviceEvent> ready) {
  auto job = std::make_shared<Job>();
  job->stores = std::move(blocks);
  job->ready = std::move(ready);
  MutexLock lock(mu_);
  const bool fits = stats_.stores_waiting + job->blocks() <= options_.store_blocks_max;
  if (!fits) stats_.dropped += job->blocks();
  return Add(std::move(job), fits);
}

std::vector<JobResult> EngineCache::Poll() {
  MutexLock lock(mu_);
  return std::exchange(done_, {});
}

void EngineCache::Cancel(JobId id) {
  MutexLock lock(mu_);
  const auto known = jobs_.find(id);
  if (known == jobs_.end()) return;
  const std::shared_ptr<Job> job = known->second;
  job->stop.request_stop();
  if (!job->running) {
    Jobs& waiting = job->load() ? loads_ : stores_;
    if (std::erase(waiting, job) > 0) {
      (job->load() ? stats_.loads_waiting : stats_.stores_waiting) -= job->blocks();
      Finish(job);
    }
  }
  changed_.NotifyAll();
  while (jobs_.contains(id)) changed_.Wait(mu_);
}

void EngineCache::Finish(const std::shared_ptr<Job>& job) {
  job->status.resize(job->blocks(), BlockStatus::kCancelled);
  Count(*job);
  done_.push_back({job->id, job->stores.empty(), std::move(job->status)});
  jobs_.erase(job->id);
  changed_.NotifyAll();
}

void EngineCache::Count(const Job& job) {
  for (const BlockStatus status : job.status) {
    const bool ok = status == BlockStatus::kOk;
    if (job.load()) {
      ++(ok ? stats_.loaded : stats_.load_failed);
    } else {
      ++(ok                                  ? stats_.stored
         : status == BlockStatus::kDuplicate ? stats_.duplicates
                                             : stats_.store_failed);
    }
  }
}

EngineCache::Stats EngineCache::stats() const {
  MutexLock lock(mu_);
  return stats_;
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
  if (job.ready != nullptr && !AwaitReady(*job.ready, stop)) return;
  while (job.status.size() < job.blocks() && !stop.stop_requested()) {
    Yield(job);
    const size_t first = job.status.size();
    const size_t count = std::min(options_.step_blocks, job.blocks() - first);
    const std::vector<BlockStatus> step = Step(job, first, count, *mover);
    LARDER_CHECK(step.size() == count);
    job.status.insert(job.status.end(), step.begin(), step.end());
  }
}

std::vector<BlockStatus> EngineCache::Step(const Job& job, size_t first, size_t count,
                                           PageStore::Mover& mover) const {
  const std::stop_token stop = job.stop.get_token();
  if (job.load()) {
    std::vector<PagedGet> gets;
    for (const LoadBlock& block : std::span(job.loads).subspan(first, count))
      gets.push_back({block.digest, block.pages, block.first_slot});
    return mover.Load(gets, job.promise, options_.load_deadline, stop);
  }
  std::vector<PagedPut> puts;
  for (const StoreBlock& block : std::span(job.stores).subspan(first, count)) {
    puts.push_back({.digest = block.digest,
                    .parent = block.parent,
                    .tokens = block.tokens,
                    .pages = block.pages,
                    .first_slot = block.first_slot,
                    .content = block.content});
  }
  return mover.Store(puts, options_.store_deadline, stop);
}

void EngineCache::Yield(const Job& job) {
  if (job.load()) return;
  const TimePoint until = SteadyNow() + options_.yield_max;
  MutexLock lock(mu_);
  while ((loading_ > 0 || !loads_.empty()) && !job.stop.stop_requested()) {
    if (!changed_.WaitUntil(mu_, until)) return;
  }
}

}  // namespace larder
