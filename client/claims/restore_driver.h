// Restores prefixes of an engine whose scheduler and workers are apart: the engine computes the
// head of a prefix in its own steps, while the workers load its tail into the engine's pages, until
// both meet.  Scheduler (client/restore) decides; this class is its driver.
//
//   RestoreDriver driver(options, clock);               // one ClaimBoard for each channel
//   driver.Begin(restore);                              // of a request that has its pages
//   each step of the engine:
//     for (const Grant& one : driver.NextStep(room)) ...  // what it may compute of each restore
//     driver.Refuse(id);                                  // the engine does not compute a grant
//     driver.Observe(...);                                // later: how long the step took
//     const News news = driver.TakeNews();                // what is restored, which pages are free
//   driver.End(id);                                     // the request is preempted or has ended
//
// A block belongs to the engine or to a worker, never to both: a grant has no block that a worker
// may write, and a block of a grant is not placed on a board.  What cannot be loaded in time is
// granted to the engine.
// A grant counts as computed at the next call of NextStep: the engine's steps run in order, so what
// a later step needs is there when it runs.
// A channel whose worker has not ended a claim kDeadAfter after it was withdrawn or late is not
// used until it has, and what it had to load is computed.
// Ownership: the boards and the clock are the caller's, and outlive it.  The pages of a restore
// stay the engine's, and are used for nothing else, until TakeNews says that they are free.
// Thread-safety: all methods from any thread.
// Threads: one, which serves the boards while a restore is under way.
// Locks: mu_ is a leaf.
// Limits: kRequestsMax restores; a block has one page, and is computed whole.  The pages that a
// worker was writing when it died are never free.
// Source: cake, sections 3 and 4.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "client/claims/claim_board.h"
#include "client/restore/scheduler.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class RestoreDriver {
 public:
  // While a restore is under way, the driver's thread looks at the boards this often.
  static constexpr std::chrono::microseconds kLookEvery{500};
  static constexpr std::chrono::seconds kDeadAfter{2};

  struct Options {
    // What computing and loading cost.  The first channel is HOST of rank 0, the second DISK of
    // rank 0, the third HOST of rank 1, and so on.
    Profile profile = {};
    uint16_t ranks = 1;
    std::vector<ClaimBoard*> boards = {};  // one for each channel of the profile, in its order
    uint32_t block_tokens = 0;
    uint32_t chunk_tokens = 0;   // of the engine's steps; whole blocks
    ByteCount block_bytes = {};  // of one rank
    // A channel has loads of about this many seconds under way, but at least two blocks.
    double under_way_s = 0.02;
    double patience = 4;  // as in SchedulerOptions
  };
  struct Restore {
    RequestId id = {};
    std::vector<Digest> blocks = {};   // of the whole prefix
    std::vector<uint32_t> pages = {};  // of the engine, one for each block
    std::vector<Tier> tiers = {};      // where each block is stored
    uint32_t have_blocks = 0;  // from the beginning: the engine has these, or computes them in a
                               // step before any grant
    LeaseId promise = {};      // that holds the blocks; may be 0
  };
  // What the engine may compute of one restore in this step.
  struct Grant {
    RequestId id = {};
    TokenRange tokens = {};
  };
  struct Restored {
    RequestId id = {};
    uint32_t computed_blocks = 0, loaded_blocks = 0;  // of those that the engine did not have
    double seconds = 0;                               // since Begin
  };
  struct News {
    std::vector<Restored> restored = {};  // the whole prefix is in the pages
    std::vector<RequestId> free = {};     // restored or ended, and no worker writes to the pages
  };

  RestoreDriver(Options options, const Clock& clock);
  // Withdraws all claims.  A page that is being written is free when its claim has ended.
  ~RestoreDriver();
  RestoreDriver(const RestoreDriver&) = delete;
  RestoreDriver& operator=(const RestoreDriver&) = delete;

  // Returns true if blocks in these tiers, from `have_blocks` on, should be restored by computing
  // and loading: loading them alone is predicted to take longer than one more chunk.
  [[nodiscard]] bool Pays(std::span<const Tier> tiers, uint32_t have_blocks) const
      LARDER_EXCLUDES(mu_);

  // Its loads begin at once.  REQUIRES: no step and no store that uses the pages is under way,
  // except the step that computes the last of have_blocks.
  [[nodiscard]] absl::Status Begin(Restore restore) LARDER_EXCLUDES(mu_);
  // Counts the grants of the step before as computed, unless they were refused, and returns those
  // of the next step.
  [[nodiscard]] std::vector<Grant> NextStep(const StepRoom& room) LARDER_EXCLUDES(mu_);
  // The engine does not compute the grant of this step.
  void Refuse(RequestId id) LARDER_EXCLUDES(mu_);
  // The engine took `seconds` for a step that computed these ranges, and decoded.
  void Observe(std::span<const TokenRange> ranges, uint32_t decode_tokens, double seconds)
      LARDER_EXCLUDES(mu_);
  // A load of one rank that is none of this driver's, from one tier, took `seconds`.
  void ObserveLoad(uint16_t rank, Tier tier, ByteCount bytes, double seconds) LARDER_EXCLUDES(mu_);
  // Ends a restore whose prefix is no longer wanted.  Does nothing if it is not under way.
  void End(RequestId id) LARDER_EXCLUDES(mu_);
  // Returns what has happened since the last call.  A restore is not free before it is restored.
  [[nodiscard]] News TakeNews() LARDER_EXCLUDES(mu_);

  [[nodiscard]] size_t under_way() const LARDER_EXCLUDES(mu_);
  [[nodiscard]] Profile Learnt() const LARDER_EXCLUDES(mu_);

 private:
  // A claim that is not over.
  struct Flight {
    RequestId restore;
    uint32_t block = 0;
    LoadId load;
    bool withdrawn = false;  // the worker does not write the page
    bool dropped = false;    // the scheduler does not wait for it any more
    TimePoint since = {};    // it is withdrawn or dropped
  };
  struct Live {
    Restore restore;
    std::optional<ComputeStep> step = {};
    double began_s = 0;
    size_t flights = 0;  // not withdrawn: the worker may write a page
    bool over = false;   // restored or ended
  };
  using Flights = absl::flat_hash_map<ClaimId, Flight>;

  [[nodiscard]] double Now() const;
  [[nodiscard]] ChannelId ChannelOf(uint16_t rank, Tier tier) const;
  [[nodiscard]] RequestSpec SpecOf(const Restore& restore) const;
  // Withdraws what is on the boards of these tokens.  Returns false if a worker writes one of them.
  [[nodiscard]] bool TakeBack(const Live& live, TokenRange tokens) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool Withdraw(size_t board, ClaimId claim, Flight& flight) LARDER_REQUIRES(mu_);
  void Run(const std::stop_token& stop) LARDER_EXCLUDES(mu_);
  void Look() LARDER_REQUIRES(mu_);
  void TakeEnded(size_t board, double now_s) LARDER_REQUIRES(mu_);
  void PlaceLoads(size_t board, double now_s) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool Place(size_t board, const Load& load, double now_s) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool IsDead(size_t board) const LARDER_REQUIRES(mu_);
  // Takes what the scheduler has decided to end: requests, loads.
  void Settle(double now_s) LARDER_REQUIRES(mu_);
  void DropCancelled() LARDER_REQUIRES(mu_);
  void FreeIfIdle(RequestId id) LARDER_REQUIRES(mu_);

  const Options options_;
  const Clock& clock_;
  const TimePoint start_;
  mutable Mutex mu_;
  CondVar changed_;
  Scheduler scheduler_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<RequestId, Live> live_ LARDER_GUARDED_BY(mu_);
  std::vector<Flights> flights_ LARDER_GUARDED_BY(mu_);  // by board
  News news_ LARDER_GUARDED_BY(mu_);
  std::jthread thread_;  // uses the members above
};

}  // namespace larder
