// What an engine asks of Larder, without waiting for it: how long a prefix is stored, and to move
// blocks between the store and its pages.
//
//   EngineCache cache(std::move(store), {});
//   const JobId asked = cache.BeginLookup(chain.steps(), have);   // in the scheduler
//   if (auto found = cache.PollLookup(asked)) ...                 // nullopt: not yet
//   const JobId load = cache.BeginLoad(blocks, found->promise);   // in a worker
//   for (JobResult& done : cache.Poll()) ...                      // once a step
//   cache.EndLookup(asked);                                       // when the workers have read
//
// No call waits for the daemon or for a copy, except Cancel, throws, or ends the process.  A store
// that does not serve is a miss; what does not fit into a queue is dropped and counted.  Loads and
// stores have threads of their own, and a store begins no further step while a load is under way.
//
// Ownership: owns the store and its threads.  The engine's pages stay the caller's: it neither
// writes to the pages of a load nor to those of a store before the job has ended (Poll, Cancel).
// Thread-safety: all methods from any thread.
// Locks: a lookup's lock is held while its Question is called, and comes before mu_, which is a
// leaf.  No lock is held while blocks move.
// Lifecycle: made -> ... -> destroyed (cancels all jobs).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/engine/page_store.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

using JobId = uint64_t;  // never 0

// A block and the pages that it lies in, as in PagedGet and PagedPut; it owns what it names.
struct LoadBlock {
  Digest digest;
  std::vector<uint32_t> pages;
  uint32_t first_slot = 0;
};
struct StoreBlock {
  Digest digest, parent;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> pages;
  uint32_t first_slot = 0;
  Digest content = {};
};

struct JobResult {
  JobId job = 0;
  bool load = false;                // otherwise a store
  std::vector<BlockStatus> status;  // by block
};

class EngineCache {
 public:
  static constexpr std::chrono::milliseconds kRestEvery{100};
  struct Options {
    uint32_t loaders = 1, storers = 1;  // threads
    // Blocks that may wait.  A load beyond it ends at once, with kFull; a store is dropped.
    size_t load_blocks_max = 65'536, store_blocks_max = 8'192;
    size_t step_blocks = 64;  // that one thread moves before it looks whether to stop; 1 to 512
    std::chrono::milliseconds lookup_patience{200};  // then a lookup is a miss
    std::chrono::milliseconds load_deadline{10'000}, store_deadline{10'000};  // of a step
    // The longest time that a step of a store waits for loads.
    std::chrono::milliseconds yield_max{1'000};
  };
  struct Found {
    TokenCount tokens;     // from the beginning; 0: a miss
    LeaseId promise = {};  // for BeginLoad; may be 0
    size_t pending = 0;    // blocks that have yet to be read from disk
  };

  EngineCache(std::unique_ptr<PageStore> store, const Options& options);
  ~EngineCache();
  EngineCache(const EngineCache&) = delete;
  EngineCache& operator=(const EngineCache&) = delete;

  // ---- the scheduler's part

  // Asks for the longest prefix beyond `first_token`.
  [[nodiscard]] JobId BeginLookup(std::span<const Digest> steps, TokenCount first_token)
      LARDER_EXCLUDES(mu_);
  // Returns the answer, or nullopt if there is none yet; after lookup_patience, a miss.  What was
  // found stays until EndLookup.  An unknown id is a miss.
  [[nodiscard]] std::optional<Found> PollLookup(JobId lookup) LARDER_EXCLUDES(mu_);
  void EndLookup(JobId lookup) LARDER_EXCLUDES(mu_);

  // ---- the workers' part

  [[nodiscard]] JobId BeginLoad(std::vector<LoadBlock> blocks, LeaseId promise = {})
      LARDER_EXCLUDES(mu_);
  // `ready`, if not null, is waited for before the pages are read.
  [[nodiscard]] JobId BeginStore(std::vector<StoreBlock> blocks,
                                 std::shared_ptr<const DeviceEvent> ready = nullptr)
      LARDER_EXCLUDES(mu_);
  // Returns the jobs that have ended and that no earlier call returned.
  [[nodiscard]] std::vector<JobResult> Poll() LARDER_EXCLUDES(mu_);
  // Ends a job.  When it returns, nothing reads or writes its pages any more.  Poll returns the job
  // with what was done; the other blocks are kCancelled.  It may wait until a step that is under
  // way has ended: a load stops soon, a store at the latest at store_deadline.
  void Cancel(JobId job) LARDER_EXCLUDES(mu_);

  [[nodiscard]] absl::Status status() const { return store_->status(); }

  struct Stats {
    uint64_t lookups = 0, hits = 0, misses = 0, impatient = 0, refused = 0;  // refused: not now
    uint64_t hit_tokens = 0;
    uint64_t loaded = 0, load_failed = 0;                   // blocks
    uint64_t stored = 0, duplicates = 0, store_failed = 0;  // blocks
    uint64_t dropped = 0;  // blocks of stores that did not fit into the queue
    size_t loads_waiting = 0, stores_waiting = 0;  // blocks
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  struct Lookup {
    Mutex mu;
    std::unique_ptr<PageStore::Question> question LARDER_GUARDED_BY(mu);  // null: a miss
    TimePoint until;
    std::optional<Found> answer LARDER_GUARDED_BY(mu);
  };
  struct Job {
    JobId id = 0;
    std::vector<LoadBlock> loads;
    std::vector<StoreBlock> stores;
    LeaseId promise;
    std::shared_ptr<const DeviceEvent> ready;
    std::vector<BlockStatus> status;  // of the blocks that are done
    std::stop_source stop;
    bool running = false;
    [[nodiscard]] bool load() const { return !loads.empty(); }
    [[nodiscard]] size_t blocks() const { return loads.size() + stores.size(); }
  };
  using Jobs = std::deque<std::shared_ptr<Job>>;

  void Run(const std::stop_token& stop, bool loads) LARDER_EXCLUDES(mu_);
  // Waits for a job.  Returns null after kRestEvery, and when there is none and the thread is to
  // stop.
  [[nodiscard]] std::shared_ptr<Job> Next(const std::stop_token& stop, bool loads)
      LARDER_EXCLUDES(mu_);
  void Do(Job& job, PageStore::Mover* mover) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<BlockStatus> Step(const Job& job, size_t first, size_t count,
                                              PageStore::Mover& mover) const;
  // Waits while loads are under way, at most yield_max.
  void Yield(const Job& job) LARDER_EXCLUDES(mu_);
  [[nodiscard]] JobId Add(std::shared_ptr<Job> job, bool fits) LARDER_REQUIRES(mu_);
  void Finish(const std::shared_ptr<Job>& job) LARDER_REQUIRES(mu_);
  void Count(const Job& job) LARDER_REQUIRES(mu_);

  const std::unique_ptr<PageStore> store_;
  const Options options_;
  mutable Mutex mu_;
  CondVar changed_;
  JobId last_ LARDER_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<JobId, std::shared_ptr<Lookup>> lookups_ LARDER_GUARDED_BY(mu_);
  Jobs loads_ LARDER_GUARDED_BY(mu_), stores_ LARDER_GUARDED_BY(mu_);             // that wait
  absl::flat_hash_map<JobId, std::shared_ptr<Job>> jobs_ LARDER_GUARDED_BY(mu_);  // not ended
  size_t loading_ LARDER_GUARDED_BY(mu_) = 0;  // threads that load
  std::vector<JobResult> done_ LARDER_GUARDED_BY(mu_);
  Stats stats_ LARDER_GUARDED_BY(mu_);
  std::vector<std::jthread> threads_;  // use the members above
};

}  // namespace larder
