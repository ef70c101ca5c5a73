// The blocks that the sessions of one engine and user hold under promises (engine.proto, Promise).
// Each of them is charged once to the user's share of leased bytes, however many promises and
// leases hold it.
//
// Ownership: shared by the promises, and by the leases that were acquired under them.
// Thread-safety: all methods from any thread; a LedgerHold from one thread at a time.
// Locks: mu_ is a leaf but for the Shares, which take no lock to grant and to release.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/runtime/shares.h"
#include "storage/index/block_index.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class HoldLedger;

// What one promise or lease holds of a ledger's blocks.
class LedgerHold {
 public:
  LedgerHold() = default;
  LedgerHold(LedgerHold&& other) noexcept = default;
  LedgerHold& operator=(LedgerHold&& other) noexcept;
  ~LedgerHold() { Reset(); }
  void Reset();

 private:
  friend class HoldLedger;
  std::shared_ptr<HoldLedger> ledger_;
  std::vector<EntryRef> blocks_;
};

class HoldLedger : public std::enable_shared_from_this<HoldLedger> {
 public:
  struct Block {
    EntryRef ref;
    ByteCount bytes;
  };
  // `account`: of the user.
  explicit HoldLedger(Shares::Account account) : account_(std::move(account)) {}

  // Adds blocks to *hold, each of which the caller holds in the store, at least as long as *hold
  // lives.  Charges those that the ledger does not have.  Returns false, and adds none, if the
  // share is used up.
  [[nodiscard]] bool Add(std::span<const Block> blocks, LedgerHold* hold) LARDER_EXCLUDES(mu_);
  // The same, but adds only those that the ledger has, and returns their bytes.
  [[nodiscard]] ByteCount AddKnown(std::span<const Block> blocks, LedgerHold* hold)
      LARDER_EXCLUDES(mu_);
  // Returns the bytes that are charged.
  [[nodiscard]] ByteCount bytes() const LARDER_EXCLUDES(mu_);

 private:
  friend class LedgerHold;
  struct Held {
    ByteCount bytes;
    uint32_t holds = 0;
  };
  void Remove(std::span<const EntryRef> blocks) LARDER_EXCLUDES(mu_);

  const Shares::Account account_;
  mutable Mutex mu_;
  absl::flat_hash_map<uint32_t, Held> held_ LARDER_GUARDED_BY(mu_);  // by EntryRef::value
  Shares::Ticket charged_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
