// Memory that an engine's scheduler shares with a worker.  The scheduler orders stores, and the
// worker makes them; by this memory the scheduler knows when the worker does not read the engine's
// pages any more, also between two messages of the worker.
//
//   PageFence fence(memory);               // in both, over the same memory
//   fence.BeginRead(order) ... EndRead()   // in the worker, around each part of a store
//   fence.Void(order);                     // in the scheduler: stores up to this one end unread
//   while (fence.Reads()) ...              // afterwards nothing reads their pages
//
// The scheduler orders no store between Void and the last Reads, because Reads counts later stores,
// too.
// A store that waits for a daemon, for room or for an answer, is not reading, so voiding takes
// about as long as copying one part.
//
// Invariant: a reader counts itself before it looks at the mark, and the scheduler sets the mark
// before it looks at the count, both sequentially consistent, so that one of them sees the other.
// Ownership: borrows kBytes bytes of memory, aligned to 8, all 0 before the first use.
// Thread-safety: all methods from any thread of any process that shares the memory.
// Limits: after a process has died while it read, Reads returns true until the memory is replaced.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace larder {

class PageFence {
 public:
  static constexpr size_t kBytes = 24;
  // REQUIRES: memory has kBytes bytes or more, and is aligned to 8.
  explicit PageFence(std::span<std::byte> memory);

  // ---- the process that stores

  // Returns false if the store of this number is voided: then its pages must not be read.
  [[nodiscard]] bool BeginRead(uint64_t order);
  void EndRead();  // after each BeginRead that returned true
  [[nodiscard]] bool Voided(uint64_t order) const;
  void CountEnded();  // a store has ended, voided or not

  // ---- the process that orders

  // Stores are numbered from 1 on, in the order in which they are ordered.
  void Void(uint64_t last_order);
  [[nodiscard]] bool Reads() const;
  [[nodiscard]] uint64_t ended() const;

 private:
  struct Words {
    std::atomic<uint64_t> ended, reading, voided;
  };
  Words& words_;
};

}  // namespace larder
