// Which engines there are or were: their contents, variants and sessions; answers Lookup for them.
//
// A registration says what an *instance* needs (one variant for each rank and group); Lookup
// answers the minimum over them, so that "1,024 tokens" means that every rank can load 1,024
// tokens.  Registrations outlive sessions: a detached engine stays while blocks of its variants are
// stored.
//
// An engine id is a name and no proof: whoever comes may attach under it, and works.  It is owned
// by the first who did, a uid or all callers of whom none is known, for as long as a session of his
// is there and kOwnerReturns after, also where a daemon ended between; then by whose session came
// next, or comes.  What is said of the engine (what it
// registers, what it has in device memory) counts from its owner alone.  What others register is
// their sessions' own, told to nobody, until they own it: then it takes the place of what the
// former owner had registered.
// Ownership: made by the daemon; keeps only references to the store.  Thread-safety: all methods
// from any thread.
// Limits: 4,096 engines, 64 contents and 1,024 variants an engine, which take 128 KiB at most;
// beside it each uid's share of each (server/runtime/shares.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "server/runtime/shares.h"
#include "storage/clock.h"
#include "storage/index/block_index.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"

namespace larder {

class DeviceTable;  // server/instances/device_table.h

class InstanceTable {
 public:
  // A tier that Lookup tells of, fastest first, and its rate for load estimates.  DEVICE needs
  // `devices`; what is there is loaded at an infinite rate.
  struct TierRate {
    Tier tier = Tier::kHost;
    double bytes_per_s = 0;
  };
  // `devices` may be null.
  InstanceTable(BlockStore& store, const Clock& clock, std::vector<TierRate> rates,
                const DeviceTable* devices = nullptr);

  // Who hears that an engine registered something new, or was forgotten.  Called without a lock.
  // Set before others use this.
  // An engine that is started again, or whose daemon is, attaches within seconds.
  static constexpr std::chrono::seconds kOwnerReturns{60};

  using OnChange = std::function<void(const std::string& engine_id)>;
  void SetOnChange(OnChange on_change) { on_change_ = std::move(on_change); }

  // Who hears that somebody attaches under, or registers something for, an engine id that another
  // one owns: `who` is the uid, so that one cannot make many of them.  As OnChange.
  using OnOther = std::function<void(const std::string& who, const std::string& what)>;
  void SetOnOther(OnOther on_other) { on_other_ = std::move(on_other); }

  // Adds to what the engine's other sessions said.  ResourceExhausted with the limit,
  // InvalidArgument from the specs.  Answers the variants' indices, in order.  `who`: of whose
  // share; null: charged to no holder, as a former daemon had it.  REQUIRES: contents carry the
  // authenticated tenant.
  [[nodiscard]] absl::StatusOr<std::vector<VariantIndex>> Register(
      const std::string& engine_id, std::span<const ContentSpec> contents,
      std::span<const VariantSpec> variants, const Shares::Account* who = nullptr)
      LARDER_EXCLUDES(mu_);

  // The number of a variant; `who` as above.
  [[nodiscard]] absl::StatusOr<VariantIndex> Number(const VariantSpec& variant,
                                                    const Shares::Account* who)
      LARDER_EXCLUDES(mu_);

  // ResourceExhausted: the limit of engines.
  [[nodiscard]] absl::Status SessionBegan(const std::string& engine_id,
                                          const wire::InstanceSession& session,
                                          const Shares::Account* who = nullptr)
      LARDER_EXCLUDES(mu_);
  // Who owned it when the former daemon ended.  REQUIRES: no session has begun.
  void ExpectOwner(const std::string& engine_id, uid_t uid) LARDER_EXCLUDES(mu_);
  // nullopt: nobody, or callers of whom no uid is known.
  [[nodiscard]] std::optional<uid_t> OwnerOf(const std::string& engine_id) const
      LARDER_EXCLUDES(mu_);
  // Whether it may say what the engine has.  It may as long as a session of its lasts, once it may.
  [[nodiscard]] bool IsOf(const std::string& engine_id, const Shares::Account& who) const
      LARDER_EXCLUDES(mu_);
  void SessionEnded(const std::string& engine_id, SessionId session) LARDER_EXCLUDES(mu_);

  // What is stored of a chain, per engine that knows `content_id`; best first.
  [[nodiscard]] std::vector<wire::InstanceHit> Lookup(const Digest& content_id,
                                                      std::span<const Digest> chain,
                                                      std::string_view engine_id) const
      LARDER_EXCLUDES(mu_);

  [[nodiscard]] std::vector<wire::InstanceInfo> List() const {
    return List("", SIZE_MAX, SIZE_MAX).instances;
  }
  // By engine id, those behind `after`: at most so many, and (but for the first) of so many bytes.
  struct Page {
    std::vector<wire::InstanceInfo> instances;
    bool more = false;
  };
  [[nodiscard]] Page List(std::string_view after, size_t most, size_t bytes_most) const
      LARDER_EXCLUDES(mu_);
  // nullopt-like: empty engine_id when unknown.
  [[nodiscard]] wire::InstanceInfo Find(const std::string& engine_id) const LARDER_EXCLUDES(mu_);

  // Of one engine, or (empty) of all, and then of all that is stored; each once, ascending.
  [[nodiscard]] std::vector<VariantIndex> VariantsOf(const std::string& engine_id) const
      LARDER_EXCLUDES(mu_);

  // Forgets detached engines of which nothing is stored.
  void Collect() LARDER_EXCLUDES(mu_);

 private:
  struct Variant {
    VariantSpec spec;
    VariantIndex index = VariantIndex::kNone;
  };
  // Immutable once shared: Register replaces it.
  struct Registration {
    std::vector<ContentSpec> contents;
    std::vector<Digest> content_ids;
    std::vector<Variant> variants;
    absl::flat_hash_map<Digest, VariantIndex> numbers;  // by VariantSpec::Id
  };
  // What one call of Register says, with the names of it all.
  struct Said {
    std::span<const ContentSpec> contents;
    std::span<const VariantSpec> variants;
    std::vector<Digest> content_ids, variant_ids;
    [[nodiscard]] bool IsIn(const Registration& registration) const;
  };
  // A uid, or (without) all callers that named none.
  struct Claimant {
    std::optional<uid_t> uid;
    bool operator==(const Claimant&) const = default;
    [[nodiscard]] std::string ToString() const {
      return ShareHolder{.uid = uid, .process = {}}.ToString();
    }
  };
  struct Live {
    wire::InstanceSession session;
    TimePoint since;
    std::optional<Claimant> whose;
  };
  struct Part {
    Part();
    std::shared_ptr<const Registration> registration;  // never null
    std::vector<Shares::Ticket> charged;               // for a place, and for what was registered
    [[nodiscard]] bool empty() const {
      return registration->contents.empty() && registration->variants.empty();
    }
  };
  struct Engine {
    std::optional<Claimant> owner;  // nullopt: nobody came, and none is expected
    TimePoint owner_left;           // when his last session ended, or the daemon began
    Part own;                       // of the owner, and of what a former daemon knew
    Part former;                    // of the owner before, until this one registers something
    std::vector<Live> sessions;     // the oldest first
    std::vector<std::pair<Claimant, Part>> others;  // who have sessions
    [[nodiscard]] const std::shared_ptr<const Registration>& registration() const {
      return own.empty() ? former.registration : own.registration;
    }
  };
  struct Candidate {
    std::string engine_id;
    bool attached = false;
    std::shared_ptr<const Registration> registration;
    std::optional<Claimant> owner;
    TimePoint owner_left;
  };
  // One variant's blocks along a chain.
  struct Presence {
    uint32_t block_steps = 1;
    std::vector<BlockIndex::Presence> blocks;
  };
  // Clears the steps that the variant does not have in the tier.
  static void Intersect(Tier tier, const Presence& presence, std::vector<char>* steps);
  // Bytes of the blocks that lie wholly in steps that all variants have.
  [[nodiscard]] static uint64_t BytesIn(const Presence& presence, const std::vector<char>& steps);
  [[nodiscard]] Presence PresenceOf(Tier tier, const std::string& engine_id, const Variant& variant,
                                    std::span<const Digest> chain) const;
  // What one Lookup has found out so far: engines often have the same variants.
  class Found;

  struct Extended {
    std::shared_ptr<const Registration> registration;
    bool changed = false;           // of what Lookup answers by
    std::optional<Claimant> owner;  // another one, so something was left out
  };
  // What he registered for the engine, with these.
  [[nodiscard]] absl::StatusOr<Extended> Extend(const std::string& engine_id, const Said& said,
                                                const Shares::Account* who) LARDER_EXCLUDES(mu_);
  // The engine, made where it is not known.  ResourceExhausted: a limit.
  [[nodiscard]] absl::StatusOr<Engine*> Enter(const std::string& engine_id,
                                              const Shares::Account* who) LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::StatusOr<VariantIndex> NumberLocked(const VariantSpec& variant,
                                                          const Shares::Account* who)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] static bool Owns(const Engine& engine, const Shares::Account* who);
  [[nodiscard]] static bool HasSession(const Engine& engine, const Claimant& whose);
  // He is there, or has left so lately that he may come back.  REQUIRES: it has an owner.
  [[nodiscard]] bool AwaitsOwner(const Engine& engine) const LARDER_REQUIRES(mu_);
  // Of engines whose owners stay away, to whose session came next; which engines.
  [[nodiscard]] std::vector<std::string> PassOnWhatIsLeft() LARDER_REQUIRES(mu_);
  // Where his registrations go; null: he has no session of an engine that another one owns.
  [[nodiscard]] static Part* PartOf(Engine& engine, const Shares::Account* who);
  // A session of his begins.  ResourceExhausted: his share of engines.
  [[nodiscard]] absl::Status Join(Engine& engine, const Shares::Account& who) LARDER_REQUIRES(mu_);
  // REQUIRES: he is one of `others`, and the owner has no session.  Whether Lookup answers anew.
  [[nodiscard]] static bool PassOn(Engine& engine, const Claimant& to);
  // Of what is registered, with these added.  ResourceExhausted: a limit of an engine's.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Registration>> With(
      const std::string& engine_id, const Registration& before, const Said& said);
  [[nodiscard]] absl::Status Intern(Registration& registration, const Shares::Account* who)
      LARDER_REQUIRES(mu_);
  void TellOfOther(const std::string& engine_id, const Claimant& who, const Claimant& owner) const;
  [[nodiscard]] std::vector<Candidate> Candidates(const Digest& content_id,
                                                  std::string_view engine_id) const
      LARDER_EXCLUDES(mu_);
  // Of each user's engines at most kCandidatesPerUser: those with sessions first, then those whose
  // owner left last.
  static void KeepSomeOfEach(std::vector<Candidate>* candidates);
  [[nodiscard]] wire::TierHit Hit(const TierRate& rate, const Candidate& candidate,
                                  std::span<const Digest> chain, Found* found) const;
  // Which of these are in a tier, of DEVICE of that engine's.
  void LookUp(Tier tier, const std::string& engine_id, VariantIndex variant,
              std::span<const Digest> keys, std::span<BlockIndex::Presence> blocks) const;
  [[nodiscard]] wire::InstanceInfo Describe(const std::string& engine_id,
                                            const Engine& engine) const LARDER_REQUIRES(mu_);

  BlockStore& store_;
  const Clock& clock_;
  const std::vector<TierRate> rates_;
  const DeviceTable* const devices_;
  OnChange on_change_;
  OnOther on_other_;
  mutable Mutex mu_;
  absl::btree_map<std::string, Engine> engines_ LARDER_GUARDED_BY(mu_);
  // For variants' numbers, by who brought them first.  They are for good, and so is the charge.
  std::vector<Shares::Ticket> numbers_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
