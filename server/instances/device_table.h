// What engines say that they have in device memory: for Lookup, WatchEvents and directives.
//
// Hearsay: the daemon neither holds nor checks these bytes, and what a session said is gone with
// it.  A block counts once an engine, however many of its sessions have it.
// Ownership: by Daemon; the ring of events outlives it.
// Thread-safety: all methods from any thread.  Locks: mu_ is a leaf but for the ring's and
// names_mu_.  What looks at many blocks lets go of it after each kSlice: it sees each that is there
// all the while, once.
// Limits: Limits, and each process's and uid's share; what is beyond them is left out, and answered
// so.  A session that leaves more behind than the ring keeps, of an engine that has more left, cuts
// off who watches.
// Memory: about 150 B a place, and the token ids of its block.
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
    size_t places_max = 1 << 20;   // a block in a session's memory is one
    size_t tokens_max = 32 << 20;  // kept with them; blocks beyond are known without
    // One engine has at most half of each.
  };
  explicit DeviceTable(EventRing& events) : DeviceTable(events, Limits()) {}
  DeviceTable(EventRing& events, const Limits& limits) : events_(events), limits_(limits) {}

  // `who`: of whose share its places are; null: of no holder's.
  void SessionBegan(SessionId session, const std::string& engine_id,
                    const Shares::Account* who = nullptr) LARDER_EXCLUDES(mu_);
  // Nothing is there any more of what it had, and nothing that it says will be.
  void SessionEnded(SessionId session) LARDER_EXCLUDES(mu_);

  // Blocks of one variant.  With tokens they are one chain, each the parent of the next.
  struct Report {
    VariantIndex variant = VariantIndex::kNone;
    std::span<const Digest> digests;
    Digest parent = {};                     // of the first; only with tokens
    std::span<const uint32_t> tokens = {};  // as many for each, or none; checked by the caller
  };
  // What a session has, too.  How many were left out.
  size_t Stored(SessionId session, const Report& report) LARDER_EXCLUDES(mu_);
  void Removed(SessionId session, VariantIndex variant, std::span<const Digest> digests)
      LARDER_EXCLUDES(mu_);
  // All that it has.
  void Cleared(SessionId session) LARDER_EXCLUDES(mu_);

  // Blocks under one hold of the lock.
  static constexpr size_t kSlice = 1024;

  // Blocks of all engines.  Cheap.
  [[nodiscard]] size_t blocks() const { return blocks_.load(std::memory_order_relaxed); }
  // Which of these an engine has.  REQUIRES: there.size() == digests.size().
  void Lookup(std::string_view engine_id, VariantIndex variant, std::span<const Digest> digests,
              std::span<char> there) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool Has(std::string_view engine_id) const LARDER_EXCLUDES(mu_);
  using Name = std::pair<VariantIndex, Digest>;
  // Calls hold(i, session) for each session that has blocks[i]: of one engine, or (empty) of all.
  // For each session `i` ascends.
  // `hold` must not call back.
  void ForEachHolder(std::string_view engine_id, std::span<const Name> blocks,
                     absl::FunctionRef<void(size_t i, SessionId)> hold) const LARDER_EXCLUDES(mu_);
  // Those that have something.
  [[nodiscard]] std::vector<SessionId> Holders() const LARDER_EXCLUDES(mu_);
  // Each block of one engine, or (empty) of all; parent is null where it is not known.  `visit`
  // must not call back.
  using Visit = absl::FunctionRef<void(VariantIndex, const Digest&, const Digest* parent)>;
  void ForEach(std::string_view engine_id, Visit visit) const LARDER_EXCLUDES(mu_);

  // ---- for who watches: what is told of an engine is known while its event is

  class Cursor {
   public:
    [[nodiscard]] bool done() const { return engine_ == kDone; }

   private:
    friend class DeviceTable;
    static constexpr uint32_t kDone = std::numeric_limits<uint32_t>::max();
    uint32_t engine_ = 0, last_engine_ = kDone - 1;
    std::optional<Name> last_;  // that was told of it
  };
  // Some more of all that is there, as if it were stored now; how many.
  [[nodiscard]] size_t Page(Cursor* cursor, std::span<TierEvent> to) const LARDER_EXCLUDES(mu_);
  // Empty: unknown.  Cheap, and waits for nobody who looks at blocks.
  [[nodiscard]] std::string EngineOf(const TierEvent& event) const LARDER_EXCLUDES(names_mu_);
  struct Chain {
    Digest parent;
    std::vector<uint32_t> tokens;
  };
  // nullopt: it has left since, or its engine did not say.
  [[nodiscard]] std::optional<Chain> ChainOf(const TierEvent& event) const LARDER_EXCLUDES(mu_);

  void CheckInvariants() const LARDER_EXCLUDES(mu_);  // O(n); tests

 private:
  struct Block {
    Digest parent;                 // where there are tokens
    std::vector<uint32_t> tokens;  // empty: not known
    absl::InlinedVector<SessionId, 1> holders;
  };
  struct Engine {
    std::string id;
    absl::btree_map<Name, Block> blocks;
    size_t sessions = 0;  // and those that are being let go
    size_t places = 0, tokens = 0;
    uint64_t told = 0;  // number of its last event
  };
  using Names = absl::flat_hash_set<Name>;
  struct Session {
    uint32_t engine = 0;
    Names has;
    std::optional<Shares::Account> account;
    Shares::Ticket places;  // for `has`
  };

  [[nodiscard]] Engine& EngineNumbered(uint32_t number) LARDER_REQUIRES(mu_) {
    return engines_.find(number)->second;
  }
  [[nodiscard]] uint32_t NumberOf(const std::string& engine_id) LARDER_REQUIRES(mu_);
  [[nodiscard]] const Engine* Find(std::string_view engine_id) const LARDER_REQUIRES(mu_);
  void ForgetEngines() LARDER_REQUIRES(mu_);
  // Calls visit(engine) for that one, or for all.
  template <class OnEngine>
  void ForEachEngine(std::string_view engine_id, OnEngine visit) const LARDER_REQUIRES(mu_);
  [[nodiscard]] bool HasPlace(const Engine& engine) const LARDER_REQUIRES(mu_) {
    return places_ < limits_.places_max && engine.places < limits_.places_max / 2;
  }
  // One more, of the session's share.  False: it has no more.
  [[nodiscard]] static bool TakePlace(Session& session);
  void KeepChain(Engine& engine, Block& block, const Digest& parent,
                 std::span<const uint32_t> tokens) LARDER_REQUIRES(mu_);
  // What a session had that is one less of its engine's, whose number this is.
  void LetAllGo(SessionId session, uint32_t number, const Names& has) LARDER_EXCLUDES(mu_);
  // That was all that its engine had.
  [[nodiscard]] bool LetEngineGo(uint32_t number, const Names& has) LARDER_EXCLUDES(mu_);
  // It is shorter to tell anew what is left than each that goes, and those are many.
  [[nodiscard]] bool BetterToldAnew(uint32_t number, const Names& has) const LARDER_EXCLUDES(mu_);
  void TellAnew(uint32_t number) LARDER_EXCLUDES(mu_);
  // Visits up to `most` blocks that follow the cursor; how many.
  template <class OnBlock>
  size_t Walk(Cursor* cursor, size_t most, OnBlock visit) const LARDER_REQUIRES(mu_);
  // True: nobody of its engine has it any more, and it is erased.
  [[nodiscard]] bool LetGo(SessionId session, Engine& engine, const Name& name)
      LARDER_REQUIRES(mu_);
  void Tell(Engine& engine, const TierEvent& event) LARDER_REQUIRES(mu_);

  EventRing& events_;
  const Limits limits_;
  std::atomic<size_t> blocks_{0};  // written under mu_ alone

  mutable Mutex names_mu_;  // a leaf; who writes has mu_, too
  absl::flat_hash_map<uint32_t, std::string> names_ LARDER_GUARDED_BY(names_mu_);  // of engines
  mutable Mutex mu_;
  size_t places_ LARDER_GUARDED_BY(mu_) = 0;
  size_t tokens_ LARDER_GUARDED_BY(mu_) = 0;
  uint32_t last_number_ LARDER_GUARDED_BY(mu_) = 0;
  size_t forget_at_ LARDER_GUARDED_BY(mu_) = 64;  // engines
  absl::btree_map<uint32_t, Engine> engines_ LARDER_GUARDED_BY(mu_);
  absl::btree_map<std::string, uint32_t, std::less<>> numbers_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<SessionId, Session> sessions_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
