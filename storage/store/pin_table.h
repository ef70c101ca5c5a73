// Pins: which owner wants which block kept, in which tier, until when.
//
// A pin is {owner, variant, digest, tier} with a deadline, and counts once: pinning again changes
// the deadline.  The block of a pin need not exist.
//
// An owner "uid:N/NAME" (a process of user N) belongs to user N.  The owner "" (prefetches) is a
// user of its own, which all clients that prefetch share.  The table counts the pins and pages of
// each user, so that the caller can reserve part of its limits for other users.  Any other owner is
// an operator's and belongs to no user.
//
// Ownership: part of BlockPins, one per tenant.
// Thread-safety: none; the caller's lock guards it.
// The table has no clock: callers pass `now_ms`, Unix milliseconds, as pins may outlive a reboot.
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

  // Adds a pin.  kAdded: the pin is new.  kMoved: the pin existed, and now has this deadline, which
  // may be earlier than before; `pages` is ignored.  kFull: there are pins_max pins; nothing has
  // changed.  `pages`: how many pages the block has, 0 if it does not exist.
  enum class AddResult { kAdded, kMoved, kFull };
  [[nodiscard]] AddResult Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms,
                              uint64_t pages = 0);

  // Returns false if there is no such pin.
  [[nodiscard]] bool Remove(std::string_view owner, const PinKey& key);
  // Removes and returns the pins for which `which(owner, key)` is true.  O(pins).
  [[nodiscard]] std::vector<Pin> RemoveIf(
      absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which);
  // Removes and returns pins whose deadline is `now_ms` or earlier, the earliest first, at most
  // `pins` of them.  A pin with kNoDeadline_ms never expires.
  [[nodiscard]] std::vector<Pin> Expire(uint64_t now_ms, size_t pins = SIZE_MAX);

  // Returns nullopt if there is no such pin.
  [[nodiscard]] std::optional<uint64_t> DeadlineOf(std::string_view owner, const PinKey& key) const;
  // The number of pins of a user (of all its owners together), and the pages that were passed to
  // Add with them, by the tier of the pin.
  struct Holding {
    size_t pins = 0;
    uint64_t host_pages = 0, disk_pages = 0;
    friend bool operator==(const Holding&, const Holding&) = default;
  };
  // Returns what the owner's user holds, or nullopt if the owner belongs to no user.
  [[nodiscard]] std::optional<Holding> HoldingOf(std::string_view owner) const;
  // Returns how many owners pin this key.
  [[nodiscard]] uint32_t Count(const PinKey& key) const;
  [[nodiscard]] size_t size() const { return pins_.size(); }

  // Calls visit(owner, key, deadline_ms) for every pin, in no particular order, for dumps and
  // snapshots.
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
  // A node map, since `by_deadline_` points at its keys, which must not move.
  using Pins = absl::node_hash_map<Name, Value>;
  struct Earlier {
    bool operator()(const std::pair<uint64_t, const Name*>& a,
                    const std::pair<uint64_t, const Name*>& b) const {
      return a.first != b.first ? a.first < b.first : *a.second < *b.second;
    }
  };

  void Erase(Pins::iterator pin);
  // Adds a pin and its pages to the Holding of its user, or subtracts them.  Does nothing if the
  // owner belongs to no user.
  void Account(const Name& name, uint64_t pages, bool add);

  const size_t pins_max_;
  Pins pins_;
  absl::btree_set<std::pair<uint64_t, const Name*>, Earlier> by_deadline_;
  absl::flat_hash_map<PinKey, uint32_t> counts_;
  absl::flat_hash_map<std::string, Holding> holdings_;  // by user; users without pins are not in it
};

}  // namespace larder
