// The blocks that engines report in their device memory, for Lookup, WatchEvents and directives.
//
// The daemon does not hold the bytes of these blocks, and it forgets a session's reports when the
// session ends.
// Ownership: Daemon owns it; the EventRing outlives it.
// Thread-safety: all methods from any thread.
// Locks: under mu_, only the EventRing's lock, names_mu_ and the locks that Shares acquires to
// refuse a charge may be acquired.  Lookup, ForEachHolder, ForEach and the end of a session release
// mu_ between slices of blocks.  ForEach visits a block once for each engine that has the block
// throughout the call.
// Limits: those of struct Limits, and the share of each process and uid.  Stored returns how many
// blocks it left out.  When a session with very many blocks ends, watchers of DEVICE may miss
// events and be cut off.
// Memory: about 150 B for each block that a session reports, and the token ids that are kept.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "server/runtime/shares.h"
#include "storage/index/event_ring.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class DeviceTable {
 public:
  struct Limits {
    size_t places_max = 1 << 20;   // a block in one session's memory takes one place
    size_t tokens_max = 32 << 20;  // kept with the blocks; further blocks are kept without tokens
    // One engine may use at most half of each.
  };
  explicit DeviceTable(EventRing& events) : DeviceTable(events, Limits()) {}
  DeviceTable(EventRing& events, const Limits& limits) : events_(events), limits_(limits) {}

  // Adds a session.  Its places are charged to the share of `who`; null charges no share.
  void SessionBegan(SessionId session, const std::string& engine_id,
                    const Shares::Account* who = nullptr) LARDER_EXCLUDES(mu_);
  // Forgets the session's blocks.  Its later reports are ignored.
  void SessionEnded(SessionId session) LARDER_EXCLUDES(mu_);

  // Blocks of one variant.  With tokens they are one chain: each is the parent of the next.
  struct Report {
    VariantIndex variant = VariantIndex::kNone;
    std::span<const Digest> digests;
    Digest parent = {};                     // of the first block; only with tokens
    std::span<const uint32_t> tokens = {};  // equally many per block (the caller checks), or none
  };
  // Adds blocks to those that the session has.  Returns how many were left out at a limit.
  size_t Stored(SessionId session, const Report& report) LARDER_EXCLUDES(mu_);
  void Removed(SessionId session, VariantIndex variant, std::span<const Digest> digests)
      LARDER_EXCLUDES(mu_);
  // Removes all blocks that the session has.
  void Cleared(SessionId session) LARDER_EXCLUDES(mu_);

  // About how many blocks Lookup, ForEach and others handle before they release mu_ for a moment.
  static constexpr size_t kSlice = 1024;

  // Returns the number of blocks of all engines; a block that two engines have counts twice.  Takes
  // no lock.
  [[nodiscard]] size_t blocks() const { return blocks_.load(std::memory_order_relaxed); }
  // Sets there[i] to 1 if the engine has digests[i], otherwise to 0.
  // REQUIRES: there.size() == digests.size().
  void Lookup(std::string_view engine_id, VariantIndex variant, std::span<const Digest> digests,
              std::span<char> there) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool Has(std::string_view engine_id) const LARDER_EXCLUDES(mu_);
  using Name = std::pair<VariantIndex, Digest>;
  // Calls hold(i, session) for each `i` and each session that has blocks[i], of the named engine
  // or, if the name is empty, of all engines.  For one session, `i` ascends.  `hold` runs under mu_
  // and must not call this object.
  void ForEachHolder(std::string_view engine_id, std::span<const Name> blocks,
                     absl::FunctionRef<void(size_t i, SessionId)> hold) const LARDER_EXCLUDES(mu_);
  // Returns the sessions that have at least one block.
  [[nodiscard]] std::vector<SessionId> Holders() const LARDER_EXCLUDES(mu_);
  // Visits each block of the named engine or, if the name is empty, of all engines.  `parent` is
  // null if the block's parent is not known.  `visit` runs under mu_ and must not call this object.
  using Visit = absl::FunctionRef<void(VariantIndex, const Digest&, const Digest* parent)>;
  void ForEach(std::string_view engine_id, Visit visit) const LARDER_EXCLUDES(mu_);

  // ---- for watchers; an engine is known at least while it has a session, or the EventRing has an
  // event of the engine

  class Cursor {
   public:
    [[nodiscard]] bool done() const { return engine_ == kDone; }

   private:
    friend class DeviceTable;
    static constexpr uint32_t kDone = std::numeric_limits<uint32_t>::max();
    uint32_t engine_ = 0, last_engine_ = kDone - 1;
    std::optional<Name> last_;  // the last block of engine_ that was visited
  };
  // Fills `to` with the blocks that follow the cursor, as events of blocks that entered DEVICE,
  // moves the cursor behind these blocks, and returns how many they are.
  [[nodiscard]] size_t Page(Cursor* cursor, std::span<TierEvent> to) const LARDER_EXCLUDES(mu_);
  // Returns the id of the event's engine, or "" if the engine is not known.  Cheap: does not wait
  // for mu_.
  [[nodiscard]] std::string EngineOf(const TierEvent& event) const LARDER_EXCLUDES(names_mu_);
  struct Chain {
    Digest parent;
    std::vector<uint32_t> tokens;
  };
  // Returns parent and tokens of the event's block; nullopt if the event's engine does not have the
  // block now, or the tokens are not known.
  [[nodiscard]] std::optional<Chain> ChainOf(const TierEvent& event) const LARDER_EXCLUDES(mu_);

  void CheckInvariants() const LARDER_EXCLUDES(mu_);  // O(n); tests

 private:
  struct Block {
    Digest parent;                 // valid if there are tokens
    std::vector<uint32_t> tokens;  // empty if they are not known
    absl::InlinedVector<SessionId, 1> holders;
  };
  struct Engine {
    std::string id;
    absl::btree_map<Name, Block> blocks;
    size_t sessions = 0;  // plus one for each LetAllGo that runs
    size_t places = 0, tokens = 0;
    uint64_t told = 0;  // the number of its last event
  };
  using Names = absl::flat_hash_set<Name>;
  struct Session {
    uint32_t engine = 0;
    Names has;
    std::optional<Shares::Account> account;
    Shares::Ticket places;  // charges `has`
  };

  [[nodiscard]] Engine& EngineNumbered(uint32_t number) LARDER_REQUIRES(mu_) {
    return engines_.find(number)->second;
  }
  [[nodiscard]] uint32_t NumberOf(const std::string& engine_id) LARDER_REQUIRES(mu_);
  [[nodiscard]] const Engine* Find(std::string_view engine_id) const LARDER_REQUIRES(mu_);
  void ForgetEngines() LARDER_REQUIRES(mu_);
  // Calls visit(engine) for the named engine or, if the name is empty, for all engines.
  template <class OnEngine>
  void ForEachEngine(std::string_view engine_id, OnEngine visit) const LARDER_REQUIRES(mu_);
  [[nodiscard]] bool HasPlace(const Engine& engine) const LARDER_REQUIRES(mu_) {
    return places_ < limits_.places_max && engine.places < limits_.places_max / 2;
  }
  // Takes one place of the session's share.  Returns false if the share is used up.
  [[nodiscard]] static bool TakePlace(Session& session);
  void KeepChain(Engine& engine, Block& block, const Digest& parent,
                 std::span<const uint32_t> tokens) LARDER_REQUIRES(mu_);
  // Removes the session from the holders of the blocks `has`, and decrements Engine::sessions of
  // its engine `number`.
  void LetAllGo(SessionId session, uint32_t number, const Names& has) LARDER_EXCLUDES(mu_);
  // If `has` is all that the engine has, removes all blocks of the engine with one event (none if
  // it has no blocks), decrements Engine::sessions and returns true.  Otherwise does nothing and
  // returns false.
  [[nodiscard]] bool LetEngineGo(uint32_t number, const Names& has) LARDER_EXCLUDES(mu_);
  // Returns true if many blocks leave, and it takes no more events to report the engine as cleared
  // and its remaining blocks as stored than to report each block that leaves.
  [[nodiscard]] bool CheaperToReportAgain(uint32_t number, const Names& has) const
      LARDER_EXCLUDES(mu_);
  void ReportAgain(uint32_t number) LARDER_EXCLUDES(mu_);
  // Visits up to `most` blocks that follow the cursor, moves the cursor behind them, and returns
  // how many.
  template <class OnBlock>
  size_t Walk(Cursor* cursor, size_t most, OnBlock visit) const LARDER_REQUIRES(mu_);
  // Removes the session from the block's holders.  Returns true if no holder is left, so that the
  // block was erased.
  [[nodiscard]] bool LetGo(SessionId session, Engine& engine, const Name& name)
      LARDER_REQUIRES(mu_);
  void Tell(Engine& engine, const TierEvent& event) LARDER_REQUIRES(mu_);

  EventRing& events_;
  const Limits limits_;
  std::atomic<size_t> blocks_{0};  // only written under mu_

  mutable Mutex names_mu_;  // a leaf; a thread that writes names_ also holds mu_
  absl::flat_hash_map<uint32_t, std::string> names_ LARDER_GUARDED_BY(names_mu_);  // of engines
  mutable Mutex mu_;
  size_t places_ LARDER_GUARDED_BY(mu_) = 0;
  size_t tokens_ LARDER_GUARDED_BY(mu_) = 0;
  uint32_t last_number_ LARDER_GUARDED_BY(mu_) = 0;
  size_t forget_at_ LARDER_GUARDED_BY(mu_) = 64;  // number of engines at which ForgetEngines runs
  absl::btree_map<uint32_t, Engine> engines_ LARDER_GUARDED_BY(mu_);
  absl::btree_map<std::string, uint32_t, std::less<>> numbers_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<SessionId, Session> sessions_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
