// Which engines there are or were: their contents, variants and sessions; answers Lookup for them.
//
// A registration says what an *instance* needs (one variant for each rank and group); Lookup
// answers the minimum over them, so that "1,024 tokens" means that every rank can load 1,024
// tokens.  Registrations outlive sessions: a detached engine stays while blocks of its variants are
// stored.
//
// Ownership: made by the daemon; keeps only references to the store.  Thread-safety: all methods
// from any thread.
// Limits: 4,096 engines, 64 contents and 1,024 variants an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/wire/messages.h"
#include "storage/block_index.h"
#include "storage/block_store.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class DeviceTable;  // server/device_table.h

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
  using OnChange = std::function<void(const std::string& engine_id)>;
  void SetOnChange(OnChange on_change) { on_change_ = std::move(on_change); }

  // Adds to what the engine's other sessions said.  ResourceExhausted with the limit,
  // InvalidArgument from the specs.  Answers the variants' indices, in order.  REQUIRES: contents
  // carry the authenticated tenant.
  [[nodiscard]] absl::StatusOr<std::vector<VariantIndex>> Register(
      const std::string& engine_id, std::span<const ContentSpec> contents,
      std::span<const VariantSpec> variants) LARDER_EXCLUDES(mu_);

  // ResourceExhausted: the limit of engines.
  [[nodiscard]] absl::Status SessionBegan(const std::string& engine_id,
                                          const wire::InstanceSession& session)
      LARDER_EXCLUDES(mu_);
  void SessionEnded(const std::string& engine_id, SessionId session) LARDER_EXCLUDES(mu_);

  // What is stored of a chain, per engine that knows `content_id`; best first.
  [[nodiscard]] std::vector<wire::InstanceHit> Lookup(const Digest& content_id,
                                                      std::span<const Digest> chain,
                                                      std::string_view engine_id) const
      LARDER_EXCLUDES(mu_);

  [[nodiscard]] std::vector<wire::InstanceInfo> List() const LARDER_EXCLUDES(mu_);
  // nullopt-like: empty engine_id when unknown.
  [[nodiscard]] wire::InstanceInfo Find(const std::string& engine_id) const LARDER_EXCLUDES(mu_);

  // Of one engine, or (empty) of all; each once, ascending.
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
  };
  struct Live {
    wire::InstanceSession session;
    TimePoint since;
  };
  struct Engine {
    std::shared_ptr<const Registration> registration = std::make_shared<Registration>();
    std::vector<Live> sessions;
  };
  struct Candidate {
    std::string engine_id;
    bool attached = false;
    std::shared_ptr<const Registration> registration;
  };

  // What the engine registered, with these; changed: something was new.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const Registration>> Extend(
      const std::string& engine_id, std::span<const ContentSpec> contents,
      std::span<const VariantSpec> variants, bool* changed) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status CheckRoom(const std::string& engine_id) const LARDER_REQUIRES(mu_);
  [[nodiscard]] std::vector<Candidate> Candidates(const Digest& content_id,
                                                  std::string_view engine_id) const
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] wire::TierHit Hit(const TierRate& rate, const Candidate& candidate,
                                  std::span<const Digest> chain) const;
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
  mutable Mutex mu_;
  absl::btree_map<std::string, Engine> engines_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
