// What engines were promised (engine.proto, Promise): for each promise, the blocks of all variants
// that an engine needs to load a prefix.  They stay readable until the last session that holds the
// promise lets it go, or until its deadline.
//
// A promise belongs to an engine and a user.  A session of another engine or user does not find it.
// Blocks that are on disk alone are read into HOST for the promise; the sessions that hold it are
// told about each (wire::PromiseReady), several in one message.
//
// Ownership: the daemon owns the table; store, shares, clock and promoter outlive it, except that
// the promoter may end first.  Calls of the promoter are ignored once their promise has ended.
// Thread-safety: all methods from any thread.
// Locks: mu_ is a leaf but for the locks that destroying a ledger takes.  Blocks are looked up,
// acquired and released, the promoter and Caller::tell are called without it.  Callers may hold the
// locks of a session.
// Limits: kBlocksMax blocks of the promises of one message; each promise counts in its maker's
// share of leases, its blocks in its user's share of leased bytes (HoldLedger).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/messages/messages.h"
#include "server/runtime/shares.h"
#include "server/sessions/hold_ledger.h"
#include "server/sessions/session_context.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"
#include "storage/tiering/promoter.h"

namespace larder {

class PromiseTable {
 public:
  static constexpr size_t kBlocksMax = 65'536;
  static constexpr size_t kReadyAtOnce = 64;  // blocks that the sessions are told of in one message

  // The session that asks.
  struct Caller {
    SessionId session;
    const std::string& engine_id;
    const Shares::Account& account;
    // Sends to the session, if it still exists.  Called from any thread.
    std::function<void(wire::Down)> tell;
  };
  struct Answer {
    wire::Promised promised;
    // To be passed to StartReads once `promised` has been sent, so that it comes before news of
    // what was read.
    std::vector<Promoter::Prepared> reads;
  };

  PromiseTable(BlockStore& store, const Clock& clock) : store_(store), clock_(clock) {}

  // Makes a promise with this id.  Considers at most *blocks blocks, from the beginning of the
  // chain, and subtracts those that it considered.  `promoter` may be null: then blocks on disk
  // alone count as missing.
  // REQUIRES: `variants` has one variant for each of the request's, and is not empty.
  [[nodiscard]] Answer Make(const Caller& caller, LeaseId id, const wire::Promise& request,
                            std::span<const SessionVariant> variants, Promoter* promoter,
                            size_t* blocks) LARDER_EXCLUDES(mu_);
  // Makes the session one of those that hold request.promise; a session may do so several times.
  [[nodiscard]] wire::Promised Join(const Caller& caller, const wire::Promise& request)
      LARDER_EXCLUDES(mu_);
  void StartReads(std::vector<Promoter::Prepared> reads, Promoter* promoter);
  // Lets go of a promise once.  Returns false if the session holds no promise of this id.
  bool Release(SessionId session, LeaseId promise) LARDER_EXCLUDES(mu_);
  // Releases all that the session holds.
  void EndSession(SessionId session) LARDER_EXCLUDES(mu_);
  // Ends promises whose deadline has passed, and tells what was read and not told yet.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_);

  // Returns the ledger of a promise of this engine and user, under which a lease need not be
  // charged for blocks that it has; null if there is no such promise.
  [[nodiscard]] std::shared_ptr<HoldLedger> Under(const std::string& engine_id,
                                                  const Shares::Account& account,
                                                  LeaseId promise) const LARDER_EXCLUDES(mu_);

  struct Stats {
    size_t promises = 0;
    ByteCount bytes;       // of their blocks, each counted once for an engine
    uint64_t expired = 0;  // promises that ended at their deadline
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  // An engine of a user: of a uid, or of all callers whose uid is not known.
  using Owner = std::pair<std::string, std::optional<uid_t>>;
  // The blocks of one variant.
  struct Part {
    SessionVariant variant;
    std::vector<Digest> keys;  // of the whole chain
    std::vector<BlockIndex::Presence> found;
    std::vector<char> present;      // by block of the chain: it is there, as far as is known
    BlockRange held;                // of the chain
    BlockStore::AcquireResult got;  // by block of `held`
  };
  struct Holder {
    SessionId session;
    std::function<void(wire::Down)> tell;
    size_t times = 1;  // that the session holds the promise
  };
  struct Promise {
    Owner owner;
    TimePoint deadline;
    uint32_t tokens = 0;
    std::vector<Holder> holders;
    std::vector<BlockLease> leases;
    std::vector<Promoter::Prepared> reads;
    Shares::Ticket place;
    std::shared_ptr<HoldLedger> ledger;
    LedgerHold charged;
    size_t waits = 0;          // blocks that are being read
    wire::PromiseReady ready;  // not told yet
  };
  using Promises = absl::flat_hash_map<LeaseId, std::unique_ptr<Promise>>;
  // A message for each of some sessions, to be sent without mu_.
  using News = std::vector<std::pair<std::function<void(wire::Down)>, wire::Down>>;

  // Looks up which blocks of the chain are there.
  [[nodiscard]] Part PartOf(const SessionVariant& variant, std::span<const Digest> steps,
                            bool disk) const;
  // What is looked for, and what came in the way.
  struct Search {
    std::vector<Part> parts;
    size_t steps = 0;  // of the chain
    uint32_t first_token = 0;
    bool disk = false;      // blocks on disk alone count
    bool full = false;      // something did not fit
    bool repeated = false;  // a digest comes twice
  };
  // Returns how many of the first `steps` steps of the chain all parts can serve.
  [[nodiscard]] static size_t Servable(const Search& search, size_t steps);
  // Returns the blocks that a part needs for so many steps, except those that end at or before the
  // first token.
  [[nodiscard]] static BlockRange Needed(const Search& search, const Part& part, size_t steps);
  // Returns the most steps, at most `steps`, that all parts can serve and whose blocks have at most
  // `budget` bytes together.
  [[nodiscard]] static size_t Affordable(Search* search, size_t steps, ByteCount budget);
  // Holds what the parts need for so many steps.  Returns false if a block is not there any more,
  // which then counts as not present; then nothing is held.
  [[nodiscard]] bool Hold(Search* search, size_t steps);
  // Finds the longest prefix that can be held within the budget, and holds it.  Returns its steps;
  // 0 if there is none beyond the first token.
  [[nodiscard]] size_t HoldLongest(Search* search, ByteCount budget);
  // Makes blocks that are on disk alone count as missing.
  static void ForgetDisk(Search* search);
  // Holds what there is, prepares the reads, and charges it.  Returns kOk, or what the answer is.
  [[nodiscard]] BlockStatus Fill(const Caller& caller, LeaseId id, const wire::Promise& request,
                                 Promoter* promoter, Search* search, Promise* promise);
  // Prepares the reading of the blocks that are on disk alone.  Returns false if the promoter does
  // not take them now.
  [[nodiscard]] bool PlanReads(const Caller& caller, LeaseId id, const wire::Promise& request,
                               std::span<const Part> parts, Promoter* promoter,
                               std::vector<Promoter::Prepared>* reads);
  [[nodiscard]] static wire::PromisedBlocks Describe(const Part& part);
  void OnRead(LeaseId id, uint32_t part, uint32_t block, BlockStatus status) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::shared_ptr<HoldLedger> LedgerOf(const Caller& caller) LARDER_REQUIRES(mu_);
  // Moves what is to be told of the promise to *news.
  static void TakeNews(Promise& promise, News* news);
  static void Send(News news);

  BlockStore& store_;
  const Clock& clock_;
  mutable Mutex mu_;
  Promises promises_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<Owner, std::weak_ptr<HoldLedger>> ledgers_ LARDER_GUARDED_BY(mu_);
  uint64_t expired_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder
