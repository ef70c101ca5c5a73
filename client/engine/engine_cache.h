// What an engine asks of Larder, mostly without waiting for it: how long a prefix is stored, and to
// move blocks between the store and its pages.
//
//   EngineCache cache(std::move(store), {});
//   const JobId asked = cache.BeginLookup(chain.steps(), have);   // in the scheduler
//   if (auto found = cache.PollLookup(asked)) ...                 // nullopt: not yet
//   const JobId load = cache.BeginLoad({.digests = ..., .pages = ...});  // in a worker
//   for (JobResult& done : cache.Poll()) ...                      // once a step
//   cache.EndLookup(asked);                                       // when the workers have read
//
// Only Cancel and AwaitLayers wait for the daemon or for a copy.  No call throws or ends the
// process.  A store that does not serve is a miss; what does not fit into a queue is dropped and
// counted.  Loads and stores have threads of their own, and a store begins no further step while a
// load is under way.
//
// Ownership: owns the store and its threads.  The engine's pages stay the caller's: it neither
// writes to the pages of a load nor to those of a store before the job has ended (Poll, Cancel).
// Layers that AwaitLayers has returned may be read before.
// Thread-safety: all methods from any thread.
// Locks: a lookup's lock is held while its Question is called, and comes before mu_, which is a
// leaf.  No lock is held while blocks move.
// Lifecycle: made -> ... -> destroyed (cancels all jobs).
// Fork: In a forked child no method may be called, nor the destructor, which would wait for threads
// that the child does not have.
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
#include "client/engine/page_fence.h"
#include "client/engine/page_store.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

using JobId = uint64_t;  // never 0

// Blocks to load.  All lists are by block; a block has the same number of pages as every other.
struct LoadJob {
  std::vector<Digest> digests = {};
  std::vector<uint32_t> pages = {};        // as in PagedBlock, one block after the other
  std::vector<uint32_t> first_slots = {};  // as in PagedBlock; empty: all 0
  LeaseId promise = {};                    // that holds the blocks; may be 0
  // From now on, for the whole job; blocks that have not been loaded by then are kCancelled.
  std::chrono::milliseconds deadline{10'000};
  // If not null, the pages are not written before it has fired.
  std::shared_ptr<const DeviceEvent> ready = nullptr;
  // One layer of all blocks after the other (AwaitLayers), before loads that wait.  If a block
  // cannot be loaded, none is.
  bool by_layer = false;
};

// Blocks to store: consecutive ones of a chain, or, if `chained` is false, blocks whose parent is
// `parent` each.
struct StoreJob {
  std::shared_ptr<const ContentSpec> content = nullptr;  // never null
  Digest parent = {};  // of the first block: the seed, or the digest of the block before
  std::vector<Digest> digests = {};
  std::vector<uint32_t> tokens = {};  // of all blocks
  std::vector<uint32_t> pages = {}, first_slots = {};
  std::chrono::milliseconds deadline{10'000};
  std::shared_ptr<const DeviceEvent> ready = nullptr;  // the pages are not read before it
  uint64_t order = 0;  // its number in Options::fence; 0 cannot be voided
  bool chained = true;
};

struct JobResult {
  JobId job = 0;
  bool load = false;                       // otherwise a store
  std::vector<BlockStatus> status;         // by block
  absl::Status cause = absl::OkStatus();   // as in PageStore::Moved
  std::chrono::duration<double> waited{};  // from its beginning until a thread took it
  std::chrono::duration<double> moved{};   // from then until its end
};

class EngineCache {
 public:
  static constexpr std::chrono::milliseconds kRestEvery{100};
  struct Options {
    uint32_t loaders = 1, storers = 1;  // threads
    // Blocks that may wait.  A load beyond it ends at once, with kFull; a store is dropped.
    size_t load_blocks_max = 65'536, store_blocks_max = 8'192;
    size_t step_blocks = 64;  // that one thread moves before it looks whether to stop; 1 to 512
    // A lookup without an answer is a miss so long after it was first polled.
    std::chrono::milliseconds lookup_patience{200};
    // The longest time that a step of a store waits for loads.
    std::chrono::milliseconds yield_max{1'000};
    // If not null, it counts stores that have ended, and those that have an `order` may be voided
    // there: what has not been stored of them by then is kCancelled.  Outlives the cache.
    PageFence* fence = nullptr;
  };
  struct Found {
    TokenCount tokens;     // from the beginning; 0: a miss
    LeaseId promise = {};  // for LoadJob; may be 0
    size_t pending = 0;    // blocks that have yet to be read from disk
  };

  EngineCache(std::unique_ptr<PageStore> store, const Options& options);
  ~EngineCache();
  EngineCache(const EngineCache&) = delete;
  EngineCache& operator=(const EngineCache&) = delete;

  // ---- the scheduler's part

  // As PageStore::Seed.
  [[nodiscard]] std::optional<Digest> Seed(const ContentSpec& content) const {
    return store_->Seed(content);
  }
  // Asks for the longest prefix beyond `first_token`.
  [[nodiscard]] JobId BeginLookup(std::span<const Digest> steps, TokenCount first_token)
      LARDER_EXCLUDES(mu_);
  // Returns the answer, or nullopt if there is none yet; after lookup_patience, a miss.  What was
  // found is kept until EndLookup, if the caller polls more often than every half of the store's
  // promise_life; if the store cannot keep it, the lookup has no answer yet again.  An unknown id
  // is a miss.
  [[nodiscard]] std::optional<Found> PollLookup(JobId lookup) LARDER_EXCLUDES(mu_);
  // Returns where the found blocks are, from block 0 on; nothing unless PollLookup returned a hit.
  [[nodiscard]] std::vector<Tier> TiersOf(JobId lookup) LARDER_EXCLUDES(mu_);
  void EndLookup(JobId lookup) LARDER_EXCLUDES(mu_);

  // ---- the workers' part

  // A job whose lists do not fit each other ends at once, with kInvalid.
  [[nodiscard]] JobId BeginLoad(LoadJob load) LARDER_EXCLUDES(mu_);
  [[nodiscard]] JobId BeginStore(StoreJob store) LARDER_EXCLUDES(mu_);
  // Waits until the first `layers` layers of a load by_layer are in its pages.  Returns whether
  // they are; false at once if the load has failed, or if Poll has returned it, and after `until`.
  [[nodiscard]] bool AwaitLayers(JobId load, uint32_t layers, TimePoint until) LARDER_EXCLUDES(mu_);
  // Returns the jobs that have ended and that no earlier call returned.
  [[nodiscard]] std::vector<JobResult> Poll() LARDER_EXCLUDES(mu_);
  // Ends a job soon, without waiting.  Poll returns the job with what was done; the other blocks
  // are kCancelled.
  void BeginCancel(JobId job) LARDER_EXCLUDES(mu_);
  // The same, and waits, about 20 ms and one copy: when it returns, nothing reads or writes the
  // job's pages any more.
  void Cancel(JobId job) LARDER_EXCLUDES(mu_);

  [[nodiscard]] absl::Status status() const { return store_->status(); }

  struct Stats {
    uint64_t lookups = 0, hits = 0, misses = 0, impatient = 0, refused = 0;  // refused: not now
    uint64_t hit_tokens = 0;
    uint64_t loaded = 0, load_failed = 0;                   // blocks; neither if it was cancelled
    uint64_t stored = 0, duplicates = 0, store_failed = 0;  // blocks
    uint64_t given_up = 0;  // blocks whose store was cancelled or voided; not counted as failed
    uint64_t dropped = 0;   // blocks of stores that did not fit into the queue; nor these
    uint64_t loads_ended = 0, stores_ended = 0;    // jobs
    size_t loads_waiting = 0, stores_waiting = 0;  // blocks
    size_t lookups_open = 0;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  struct Lookup {
    Mutex mu;
    std::unique_ptr<PageStore::Question> question LARDER_GUARDED_BY(mu);  // null: a miss
    // When patience ends; not set before the first poll, and while there is an answer.
    std::optional<TimePoint> until LARDER_GUARDED_BY(mu);
    bool counted LARDER_GUARDED_BY(mu) = false;  // as a hit or a miss
  };
  struct Job {
    explicit Job(LoadJob job) : load(std::move(job)), loads(true) {}
    explicit Job(StoreJob job) : store(std::move(job)), loads(false) {}
    [[nodiscard]] size_t blocks() const {
      return loads ? load.digests.size() : store.digests.size();
    }
    [[nodiscard]] bool Fits() const;  // its lists fit each other
    [[nodiscard]] std::span<const uint32_t> PartOf(const std::vector<uint32_t>& all,
                                                   size_t block) const;

    JobId id = 0;
    LoadJob load;  // if loads
    StoreJob store;
    const bool loads;
    TimePoint begun = SteadyNow(), taken = begun;
    TimePoint until;
    std::vector<BlockStatus> status;  // of the blocks that are done
    absl::Status cause;
    std::stop_source stop;
    uint32_t layers = 0;  // that have come, of a load by_layer
    bool running = false;
    bool dropped = false;  // it did not fit into the queue
  };
  using Jobs = std::deque<std::shared_ptr<Job>>;

  void Run(const std::stop_token& stop, bool loads) LARDER_EXCLUDES(mu_);
  // Waits for a job.  Returns null after kRestEvery, and when there is none and the thread is to
  // stop.
  [[nodiscard]] std::shared_ptr<Job> Next(const std::stop_token& stop, bool loads)
      LARDER_EXCLUDES(mu_);
  void Do(Job& job, PageStore::Mover* mover) LARDER_EXCLUDES(mu_);
  // Moves `count` blocks from number `first` on.
  [[nodiscard]] PageStore::Moved Step(const Job& job, size_t first, size_t count,
                                      PageStore::Mover& mover) const;
  // Loads all blocks, layer by layer.
  void LoadLayers(Job& job, PageStore::Mover& mover) LARDER_EXCLUDES(mu_);
  // The blocks of a load from number `first` on.
  [[nodiscard]] static std::vector<PagedGet> GetsOf(const Job& job, size_t first, size_t count);
  [[nodiscard]] bool Voided(const Job& job) const;
  // Waits while loads are under way, at most yield_max.
  void Yield(const Job& job) LARDER_EXCLUDES(mu_);
  [[nodiscard]] JobId Add(std::shared_ptr<Job> job) LARDER_EXCLUDES(mu_);
  // Returns false if there is no such job any more.
  bool Stop(JobId id) LARDER_REQUIRES(mu_);
  [[nodiscard]] std::shared_ptr<Lookup> LookupOf(JobId id) LARDER_EXCLUDES(mu_);
  void CountAnswer(Lookup& lookup, TokenCount tokens, bool impatient) LARDER_REQUIRES(lookup.mu)
      LARDER_EXCLUDES(mu_);
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
