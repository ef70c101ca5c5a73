// Who wants which blocks kept, in which tier, until when.
//
// A pin is {owner, key, tier} with a deadline, counted once: pinning again moves the deadline. Pins
// do not need their block to exist.
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
#include "storage/block_state.h"
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
  // one. kFull: nothing changed.
  enum class AddResult { kAdded, kMoved, kFull };
  [[nodiscard]] AddResult Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms);

  // True: lower the block's count.  False: no such pin.
  [[nodiscard]] bool Remove(std::string_view owner, const PinKey& key);
  // Those of which `which(owner, key)` says so.  O(pins).
  [[nodiscard]] std::vector<Pin> RemoveIf(
      absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which);
  // Removes pins whose deadline is `now_ms` or before, earliest first, at most `pins`.
  [[nodiscard]] std::vector<Pin> Expire(uint64_t now_ms, size_t pins = SIZE_MAX);

  // nullopt: no such pin.
  [[nodiscard]] std::optional<uint64_t> DeadlineOf(std::string_view owner, const PinKey& key) const;
  // Owners that pin this key.
  [[nodiscard]] uint32_t Count(const PinKey& key) const;
  [[nodiscard]] size_t size() const { return pins_.size(); }

  // Calls visit(owner, key, deadline_ms) for every pin, in no order: dumps and snapshots.
  template <class Visit>
  void ForEach(Visit visit) const {
    for (const auto& [name, deadline_ms] : pins_)
      visit(std::string_view(name.first), name.second, deadline_ms);
  }

  void CheckInvariants() const;  // O(n); tests and debug dumps

 private:
  using Name = std::pair<std::string, PinKey>;
  using Pins = absl::node_hash_map<Name, uint64_t>;  // nodes: `by_deadline_` points at names
  struct Earlier {
    bool operator()(const std::pair<uint64_t, const Name*>& a,
                    const std::pair<uint64_t, const Name*>& b) const {
      return a.first != b.first ? a.first < b.first : *a.second < *b.second;
    }
  };

  void Erase(Pins::iterator pin);

  const size_t pins_max_;
  Pins pins_;
  absl::btree_set<std::pair<uint64_t, const Name*>, Earlier> by_deadline_;
  absl::flat_hash_map<PinKey, uint32_t> counts_;
};

}  // namespace larder
