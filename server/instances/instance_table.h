// The engines that are attached or were: their contents, variants and sessions.  The table answers
// Lookup.
//
// A registration says what an engine instance needs, with one variant for each rank and group.
// Lookup answers the minimum over these variants, so that "1,024 tokens" means that every rank can
// load 1,024 tokens.  Where groups need only some blocks of a prefix (GroupKind), the answer is the
// longest prefix for which each has what it needs.  Lookup answers for an engine that registered a
// content of the same model and revision, whatever the salt, the LoRA and the multimodal part:
// these are in the names of blocks, so Lookup finds no blocks of others.
//
// An engine without sessions is kept while blocks of its variants are stored.  The first session
// after it had none begins a new registration, because the engine may have come back with other
// variants; Lookup answers from the former one until something is registered, or is refused because
// the share is used up.
//
// An engine id is a name, not a proof of identity: any process may attach under it, and its session
// works.  The first caller that uses the id owns it; the owner is a uid, or all callers whose uid
// is not known.  If the owner has no session, and did not have one in the last kOwnerReturns, the
// id may pass to another caller that has one.  Only the owner's statements about the engine count:
// what it registers, and what it has in device memory.  What another caller registers serves only
// that caller's sessions, and Lookup and List do not report it.  If that caller becomes the owner,
// its registrations replace those of the former owner.
// Ownership: Daemon owns it; the store and the device table outlive it.
// Thread-safety: all methods from any thread.
// Locks: the locks of the store, of its index and of Shares may be acquired under mu_.  The device
// table and the callbacks are called without mu_.
// Limits: 4,096 engines; for an engine, each caller may register contents of 64 models and 1,024
// variants, which take at most 128 KiB; and the share of each uid (server/runtime/shares.h).  List
// reports at most 64 contents of an engine, of each model at least one, without salts and
// multimodal parts.
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
  // A tier that Lookup reports, and its rate for load estimates.  In `rates` the fastest tier comes
  // first.  DEVICE needs `devices`, and an infinite rate: its blocks need not be loaded.
  struct TierRate {
    Tier tier = Tier::kHost;
    double bytes_per_s = 0;
  };
  // `devices` may be null if `rates` does not have DEVICE.
  InstanceTable(BlockStore& store, const Clock& clock, std::vector<TierRate> rates,
                const DeviceTable* devices = nullptr);

  // How long an engine id stays with an owner that has no session, so that an engine or the daemon
  // can restart.
  static constexpr std::chrono::seconds kOwnerReturns{60};

  // Called without a lock when the owner of an engine registered something new, and when Collect
  // passed the engine to another owner or forgot it.  Must be set before another thread uses this
  // object.
  using OnChange = std::function<void(const std::string& engine_id)>;
  void SetOnChange(OnChange on_change) { on_change_ = std::move(on_change); }

  // Called without a lock when a caller attaches under an engine id that another caller owns, or
  // registers something new for that engine.  `who` names no more than the caller's uid, so one
  // caller cannot cause many values of `who`.  Must be set before another thread uses this object.
  using OnOther = std::function<void(const std::string& who, const std::string& what)>;
  void SetOnOther(OnOther on_other) { on_other_ = std::move(on_other); }

  // Adds to what the uid of `who` has registered for the engine, and returns the indices of the
  // variants, in the order of `variants`.  If another caller owns the engine and the uid of `who`
  // has no session of it, registers nothing, but gives the variants their indices.  Returns
  // ResourceExhausted at a limit, which the message names, and InvalidArgument if a spec is not
  // valid.  Charges the share of the uid of `who`.  If `who` is null, as for a registration that a
  // former daemon left on disk, registers for the owner and charges no share.
  // REQUIRES: contents carry the authenticated tenant.
  [[nodiscard]] absl::StatusOr<std::vector<VariantIndex>> Register(
      const std::string& engine_id, std::span<const ContentSpec> contents,
      std::span<const VariantSpec> variants, const Shares::Account* who = nullptr)
      LARDER_EXCLUDES(mu_);

  // Returns the index of a variant, which gets one if it has none.  Charges a new index to the
  // share of the uid of `who`, or to no share if `who` is null.  Returns ResourceExhausted at a
  // limit.
  [[nodiscard]] absl::StatusOr<VariantIndex> Number(const VariantSpec& variant,
                                                    const Shares::Account* who)
      LARDER_EXCLUDES(mu_);

  // Adds a session of `who` to the engine.  Returns ResourceExhausted at the limit of all engines,
  // or of the engines of the uid.
  [[nodiscard]] absl::Status SessionBegan(const std::string& engine_id,
                                          const wire::InstanceSession& session,
                                          const Shares::Account* who = nullptr)
      LARDER_EXCLUDES(mu_);
  // Makes `uid`, which owned the engine when the former daemon ended, the owner of the engine.  A
  // no-op if the engine is not known.
  // REQUIRES: no session has begun.
  void ExpectOwner(const std::string& engine_id, uid_t uid) LARDER_EXCLUDES(mu_);
  // Returns nullopt if the engine is not known, has no owner, or belongs to the callers whose uid
  // is not known.
  [[nodiscard]] std::optional<uid_t> OwnerOf(const std::string& engine_id) const
      LARDER_EXCLUDES(mu_);
  // Returns true if `who` may report what the engine has in device memory.  If it is true for a uid
  // that has a session of the engine, it stays true until the last of these sessions ends.
  [[nodiscard]] bool IsOf(const std::string& engine_id, const Shares::Account& who) const
      LARDER_EXCLUDES(mu_);
  void SessionEnded(const std::string& engine_id, SessionId session) LARDER_EXCLUDES(mu_);

  // Returns, the best first, how much of the chain is stored for the engines that registered the
  // model and revision of `content`; if `engine_id` is not empty, only for that one of them.
  // Leaves out engines for which it finds nothing, and looks at no more than 64 engines of an
  // owner.  REQUIRES: `content` carries the authenticated tenant.
  [[nodiscard]] std::vector<wire::InstanceHit> Lookup(const ContentSpec& content,
                                                      std::span<const Digest> chain,
                                                      std::string_view engine_id) const
      LARDER_EXCLUDES(mu_);

  [[nodiscard]] std::vector<wire::InstanceInfo> List() const {
    return List("", SIZE_MAX, SIZE_MAX).instances;
  }
  // Engines in the order of their ids.
  struct Page {
    std::vector<wire::InstanceInfo> instances;
    bool more = false;  // whether further engines follow
  };
  // Returns the engines that follow `after`: at most `most` of them, and at most about `bytes_most`
  // bytes of a message, except that the first one may be larger.
  [[nodiscard]] Page List(std::string_view after, size_t most, size_t bytes_most) const
      LARDER_EXCLUDES(mu_);
  // Returns an empty engine_id if the engine is not known.
  [[nodiscard]] wire::InstanceInfo Find(const std::string& engine_id) const LARDER_EXCLUDES(mu_);

  // Returns the variants of one engine, or, if `engine_id` is empty, of all engines and of stored
  // blocks; each variant once, ascending.
  [[nodiscard]] std::vector<VariantIndex> VariantsOf(const std::string& engine_id) const
      LARDER_EXCLUDES(mu_);

  // Passes engines whose owners stay away to other callers that have sessions, and forgets detached
  // engines of which nothing is stored.
  void Collect() LARDER_EXCLUDES(mu_);

 private:
  struct Variant {
    VariantSpec spec;
    VariantIndex index = VariantIndex::kNone;
  };
  // A content as List reports it.
  struct Content {
    ContentSpec spec;  // without salt and multimodal part
    Digest id;         // of `spec`
    Digest model;      // the id of `spec` without LoRA
    explicit Content(ContentSpec content);
  };
  // Returns the id of the content without salt, multimodal part and LoRA.
  [[nodiscard]] static Digest ModelOf(ContentSpec content);
  // Immutable once shared: Register replaces it.
  struct Registration {
    std::vector<Content> contents;
    std::vector<Variant> variants;
    absl::flat_hash_map<Digest, size_t> places;  // of `variants`, by VariantSpec::Id
    [[nodiscard]] bool HasContent(const Digest& id) const;
    [[nodiscard]] bool HasModel(const Digest& model) const;
    // Whether `content` is to be added: it is new, and its model is too or there is space for it.
    [[nodiscard]] bool Misses(const Content& content) const;
    // Adds a content that it misses; without space, in the place of another one of a model of which
    // it has several.  Returns false if it has none such.
    [[nodiscard]] bool Add(Content content);
  };
  // The arguments of one call of Register, and their ids.
  struct Said {
    std::vector<Content> contents;
    std::span<const VariantSpec> variants;
    std::vector<Digest> variant_ids;
    [[nodiscard]] bool IsIn(const Registration& registration) const;
    // Variants with one id are used in one way, because their blocks have one name.  Returns
    // InvalidArgument if the registration has one of these with another kind.
    [[nodiscard]] absl::Status CheckKinds(const Registration& registration) const;
  };
  // A uid; nullopt stands for all callers whose uid is not known.
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
    Shares::Ticket place;                              // for the engine
    std::vector<Shares::Ticket> charged;               // for the registration
    [[nodiscard]] bool empty() const {
      return registration->contents.empty() && registration->variants.empty();
    }
  };
  struct Engine {
    std::optional<Claimant> owner;  // nullopt if no owner is known
    TimePoint owner_left;           // when its last session ended, or ExpectOwner named it
    Part own;                       // the owner's since its first session, or a former daemon's
    Part former;                    // the one before, until `own` has something
    std::vector<Live> sessions;     // the oldest first
    std::vector<std::pair<Claimant, Part>> others;  // other callers that have sessions
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
  // Sets to 0 the elements of `steps`, each of which stands for kStepTokens tokens, whose block is
  // not in the tier, according to `presence`.
  static void Intersect(Tier tier, const Presence& presence, std::vector<char>* steps);
  // Returns the bytes of those blocks of `presence` whose steps are all set in `steps`.
  [[nodiscard]] static uint64_t BytesIn(const Presence& presence, const std::vector<char>& steps);
  [[nodiscard]] Presence PresenceOf(Tier tier, const std::string& engine_id, const Variant& variant,
                                    std::span<const Digest> chain) const;
  // Caches the index lookups of one Lookup, because engines often have the same variants.
  class Found;

  struct Extended {
    std::shared_ptr<const Registration> registration;
    bool changed = false;           // what Lookup uses has changed
    std::optional<Claimant> owner;  // set if it is another caller and something is new
  };
  // The part of Register that runs under mu_.
  [[nodiscard]] absl::StatusOr<Extended> Extend(const std::string& engine_id, const Said& said,
                                                const Shares::Account* who) LARDER_EXCLUDES(mu_);
  // Returns the engine, which is created if it is not known.  Returns ResourceExhausted at a limit.
  [[nodiscard]] absl::StatusOr<Engine*> Enter(const std::string& engine_id,
                                              const Shares::Account* who) LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::StatusOr<VariantIndex> NumberLocked(const VariantSpec& variant,
                                                          const Shares::Account* who)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] static bool Owns(const Engine& engine, const Shares::Account* who);
  [[nodiscard]] static bool HasSession(const Engine& engine, const Claimant& whose);
  // Returns true if the owner has a session, or if its last session ended, or ExpectOwner named it,
  // less than kOwnerReturns ago.
  [[nodiscard]] bool AwaitsOwner(const Engine& engine) const LARDER_REQUIRES(mu_);
  // Passes engines whose owners stay away to other callers that have sessions, and returns their
  // ids.
  [[nodiscard]] std::vector<std::string> PassOnWhatIsLeft() LARDER_REQUIRES(mu_);
  // Returns the part that holds the caller's registrations, or null if another caller owns the
  // engine and this one has no session of it.
  [[nodiscard]] static Part* PartOf(Engine& engine, const Shares::Account* who);
  // To be called when the owner's first session begins: what it registers from now on replaces
  // what is registered.
  static void BeginAgain(Engine& engine);
  // To be called when a session of `who` begins: adds a Part for its uid, unless the uid owns the
  // engine or has one.  Returns ResourceExhausted at the uid's share of engines.
  [[nodiscard]] absl::Status Join(Engine& engine, const Shares::Account& who) LARDER_REQUIRES(mu_);
  // Makes `to` the owner.  Returns true if `to` has registered something.
  // REQUIRES: `to` is one of `others`, and the owner has no session.
  [[nodiscard]] static bool PassOn(Engine& engine, const Claimant& to);
  // Returns a copy of `before` with `said` added.  Returns ResourceExhausted at an engine's limits.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Registration>> With(
      const std::string& engine_id, const Registration& before, const Said& said);
  // Charges the uid of `who` for what `next` has beyond `before`.  Returns ResourceExhausted at a
  // share.
  [[nodiscard]] static absl::StatusOr<std::vector<Shares::Ticket>> Charge(
      const Shares::Account& who, const Registration& before, const Registration& next);
  [[nodiscard]] absl::Status Intern(Registration& registration, const Shares::Account* who)
      LARDER_REQUIRES(mu_);
  void TellOfOther(const std::string& engine_id, const Claimant& who, const Claimant& owner) const;
  [[nodiscard]] std::vector<Candidate> Candidates(const ContentSpec& content,
                                                  std::string_view engine_id) const
      LARDER_EXCLUDES(mu_);
  // Keeps at most kCandidatesPerUser engines of each user: those with sessions first, then those
  // whose owners left last.
  static void KeepSomeOfEach(std::vector<Candidate>* candidates);
  [[nodiscard]] wire::TierHit Hit(const TierRate& rate, const Candidate& candidate,
                                  std::span<const Digest> chain, Found* found) const;
  // The same for an engine with groups that do not need every block of a prefix: the hit is the
  // longest prefix that all of its variants can serve.
  [[nodiscard]] wire::TierHit HitOfGroups(const TierRate& rate, const Candidate& candidate,
                                          std::span<const Digest> chain, Found* found) const;
  // Looks up which of the keys are in a tier; for DEVICE, which of them `engine_id` has.
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
  // Charges for variants' numbers.  Numbers are never released, so neither are the charges.
  std::vector<Shares::Ticket> numbers_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
