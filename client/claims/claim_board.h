// Memory that an engine's scheduler shares with one worker: the blocks that the worker is to load
// into pages of the engine, and how each load went.  An engine's own messages travel once per step,
// which may take hundreds of milliseconds; what is written here the other process sees at once.
//
//   ClaimBoard board(memory);                        // in both, over the same memory
//   auto claim = board.Place({.digest = d, .page = p, ...});        // in the scheduler
//   for (const Claim& one : board.Take(64, milliseconds(100))) ...  // in the worker: fetch these
//   if (board.BeginWrite(one.id)) ...                // in the worker, with the bytes at hand: copy
//   board.End(one.id, status);                       // in the worker, exactly once for each taken
//   if (board.Withdraw(*claim)) ...                  // in the scheduler: the page is its own again
//   for (const Ended& one : board.TakeEnded()) ...   // in the scheduler: claims that are over
//
// A claim begins with Place and ends with TakeEnded.  From Place on, the page belongs to the
// worker, until Withdraw has returned true or TakeEnded has returned the claim.
// Invariants: a claim is placed, then withdrawn or being written, then ended.  Both ways out of
// "placed" are one compare-and-exchange, so that after a Withdraw that returned true the worker
// never writes the page, and after a BeginWrite that returned true Withdraw returns false.
// Ownership: borrows kBytes bytes of memory, aligned to 64, all 0 before the first use.  Each side
// makes one ClaimBoard over it.
// Thread-safety: the scheduler's methods from one thread at a time, the worker's from any thread;
// in one process only, each side.
// Limits: kClaimsMax claims that are not over.  After a worker has died, its claims do not end.
// If another process has overwritten the memory, broken() becomes true: from then on the board
// takes and ends no claim, and Place returns nullopt.  It touches nothing outside the memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

// A claim's place on its board.
enum class ClaimId : uint16_t {};

class ClaimBoard {
 public:
  static constexpr size_t kClaimsMax = 1024;
  static constexpr size_t kBytes = 64 << 10;

  struct Work {
    Digest digest = {};
    uint32_t page = 0;     // of the engine; it holds the whole block
    LeaseId promise = {};  // that holds the block; may be 0
    // The worker fetches nothing after it (UnixMilliseconds).
    uint64_t deadline_unix_ms = 0;
  };
  struct Claim {
    ClaimId id = {};
    Work work = {};
  };
  struct Ended {
    ClaimId id = {};
    BlockStatus status = BlockStatus::kMissing;  // kOk: the page has the whole block
  };

  // REQUIRES: memory has kBytes bytes or more, and is aligned to 64.
  explicit ClaimBoard(std::span<std::byte> memory);

  // ---- the scheduler

  // Returns nullopt if kClaimsMax claims are not over, or the board is broken.
  [[nodiscard]] std::optional<ClaimId> Place(const Work& work);
  // Returns true if the worker writes the page.
  [[nodiscard]] bool Writes(ClaimId claim) const;
  // Returns true if the worker has not begun to write the page; then it never does.  The claim
  // still ends, with another status than kOk.  REQUIRES: the claim is not over.
  [[nodiscard]] bool Withdraw(ClaimId claim);
  // Returns the claims that the worker has ended and that no earlier call returned.
  [[nodiscard]] std::vector<Ended> TakeEnded();
  [[nodiscard]] size_t open() const { return kClaimsMax - free_.size(); }  // claims not over

  // ---- the worker

  // Returns claims in the order in which they were placed, at most `at_most`.  If there are none,
  // or the board is broken, waits up to `patience`.  Claims that were withdrawn meanwhile are ended
  // instead.
  [[nodiscard]] std::vector<Claim> Take(size_t at_most, std::chrono::milliseconds patience)
      LARDER_EXCLUDES(mu_);
  // Returns false if the claim was withdrawn: then the page must not be written.
  [[nodiscard]] bool BeginWrite(ClaimId claim);
  // Returns false if the claim was withdrawn: its bytes need not be fetched.
  [[nodiscard]] bool Wanted(ClaimId claim) const;
  // When it is called, nothing writes the page any more.  REQUIRES: Take returned the claim, and
  // End was not called for it.
  void End(ClaimId claim, BlockStatus status) LARDER_EXCLUDES(mu_);

  // ---- both

  [[nodiscard]] bool broken() const { return broken_.load(); }

 private:
  enum class Phase : uint32_t;
  struct Slot;
  struct Shared;
  // Appends the claims of a ring that were not taken yet, at most `at_most`, and counts them as
  // taken.  The counters and the claims come from memory that the other process writes.
  [[nodiscard]] std::vector<ClaimId> TakeFrom(const std::atomic<uint32_t>& written,
                                              const std::atomic<uint16_t>* ring, uint32_t* taken,
                                              size_t at_most);
  void PushEnd(ClaimId claim, BlockStatus status) LARDER_REQUIRES(mu_);

  Shared& shared_;
  std::atomic<bool> broken_{false};
  std::vector<ClaimId> free_;  // the scheduler's
  std::vector<bool> open_;     // the scheduler's, by claim: it is not over
  uint32_t ends_taken_ = 0;    // the scheduler's
  Mutex mu_;                   // the worker's; a leaf
  uint32_t placed_taken_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder
