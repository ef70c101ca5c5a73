// Who wants which blocks kept, in which tier, until when.
//
// A pin is {owner, key, tier} with a deadline, counted once: pinning again moves the deadline. Pins
// do not need their block to exist.
//
// An owner "uid:N/NAME" (of a process of user N) belongs to that user, and the owner ""
// (prefetches) to all who prefetch: it is known how much each of these holds, so that a caller can
// leave room for the others. Other owners are operators', and belong to nobody.
//
// Ownership: one per tenant, of BlockPins.
// Thread-safety: none, under the caller's lock.
// No clock: `now_ms` comes in (wall clock, since pins outlive a boot).
// Limits: `pins_max` pins, exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "storage/index/block_state.h"
#include "storage/types.h"

namespace larder {

struct PinKey {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Tier tier = Tier::kHost;

  friend auto operator<=>(const PinKey&, const PinKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PinKey& k) {
    return H::combine(std::move(h), k.variant, k.digest, k.tier);
  }
};

struct Pin {
  std::string owner;
  PinKey key;
  uint64_t deadline_ms = 0;

  friend bool operator==(const Pin&, const Pin&) = default;
};

class PinTable {
 public:
  static constexpr uint64_t kNoDeadline_ms = UINT64_MAX;

  explicit PinTable(size_t pins_max) : pins_max_(pins_max) {}

  // kAdded: raise the block's count.  kMoved: was there, has the new deadline now, also an earlier
  // one. kFull: nothing changed.  `pages`: of its block, 0 where it is not there.
  enum class AddResult { kAdded, kMoved, kFull };
  [[nodiscard]] AddResult Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms,
                              uint64_t pages = 0);

  // True: lower the block's count.  False: no such pin.
  [[nodiscard]] bool Remove(std::string_view owner, const PinKey& key);
  // Those of which `which(owner, key)` says so.  O(pins).
  [[nodiscard]] std::vector<Pin> RemoveIf(
      absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which);
  // Removes pins whose deadline is `now_ms` or before, earliest first, at most `pins`.
  [[nodiscard]] std::vector<Pin> Expire(uint64_t now_ms, size_t pins = SIZE_MAX);

  // nullopt: no such pin.
  [[nodiscard]] std::optional<uint64_t> DeadlineOf(std::string_view owner, const PinKey& key) const;
  // What a user's pins are, all owners together; pages as they were added.
  struct Holding {
    size_t pins = 0;
    uint64_t host_pages = 0, disk_pages = 0;
    friend bool operator==(const Holding&, const Holding&) = default;
  };
  // nullopt: the owner belongs to nobody.
  [[nodiscard]] std::optional<Holding> HoldingOf(std::string_view owner) const;
  // Owners that pin this key.
  [[nodiscard]] uint32_t Count(const PinKey& key) const;
  [[nodiscard]] size_t size() const { return pins_.size(); }

  // Calls visit(owner, key, deadline_ms) for every pin, in no order: dumps and snapshots.
  template <class Visit>
  void ForEach(Visit visit) const {
    for (const auto& [name, value] : pins_)
      visit(std::string_view(name.first), name.second, value.deadline_ms);
  }

  void CheckInvariants() const;  // O(n); tests and debug dumps

 private:
  using Name = std::pair<std::string, PinKey>;
  struct Value {
    uint64_t deadline_ms = 0;
    uint64_t pages = 0;
  };
  using Pins = absl::node_hash_map<Name, Value>;  // nodes: `by_deadline_` points at names
  struct Earlier {
    bool operator()(const std::pair<uint64_t, const Name*>& a,
                    const std::pair<uint64_t, const Name*>& b) const {
      return a.first != b.first ? a.first < b.first : *a.second < *b.second;
    }
  };

  void Erase(Pins::iterator pin);
  // Adds a pin to what its user holds, or takes it away; none where it has no user.
  void Account(const Name& name, uint64_t pages, bool add);

  const size_t pins_max_;
  Pins pins_;
  absl::btree_set<std::pair<uint64_t, const Name*>, Earlier> by_deadline_;
  absl::flat_hash_map<PinKey, uint32_t> counts_;
  absl::flat_hash_map<std::string, Holding> holdings_;  // by user; none of them empty
};

}  // namespace larder
