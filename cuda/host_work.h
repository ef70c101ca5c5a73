// The work of one queue of the host device, done in the order in which it was added.
//
// The queue's thread does all of it.  A thread that waits for some of it takes part in copying
// meanwhile: otherwise both threads would have to be woken, one to begin and one at the end, which
// takes as long as copying 1 MiB or more, and only one of them would copy.
//
// Invariant: items that were added later are not begun before those before them are done.
// Ownership: owns copies of what was added.  The memory that copies name must live until the item
// is done.
// Thread-safety: any thread may call Add, added, Done and Wait; one thread calls Run.
// Limits: none of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "cuda/device.h"
#include "storage/mutex.h"

namespace larder {

class HostWork {
 public:
  // About as many bytes are one part of the copies of an item: so few that the threads that make
  // them end at about the same time.
  static constexpr uint64_t kPartBytes = 256 << 10;

  // Adds one item.  The copies of an item must not overlap; they are made in any order, by several
  // threads.  A call is made by the thread in Run.  Without copies nothing is added.
  void Add(std::span<const DeviceCopy> copies) LARDER_EXCLUDES(mu_);
  void Add(std::function<void()> call) LARDER_EXCLUDES(mu_);
  // Returns how many items were added.
  [[nodiscard]] uint64_t added() const LARDER_EXCLUDES(mu_);

  // Returns true if the first `count` items are done.
  [[nodiscard]] bool Done(uint64_t count) const LARDER_EXCLUDES(mu_);
  // Waits until the first `count` items are done, and makes copies meanwhile.  Returns false if
  // they are not done by the deadline, or a little after it: a part is not interrupted.
  [[nodiscard]] bool Wait(uint64_t count, std::chrono::steady_clock::time_point deadline)
      LARDER_EXCLUDES(mu_);

  // Does items until End was called and none is left.
  void Run() LARDER_EXCLUDES(mu_);
  void End() LARDER_EXCLUDES(mu_);

 private:
  struct Item {
    std::vector<DeviceCopy> copies = {};  // none longer than kPartBytes
    std::function<void()> call = {};      // if set, there are no copies
    size_t taken = 0;                     // copies that threads have begun
    size_t threads = 0;                   // threads that work on the item
    [[nodiscard]] bool Left() const { return taken < copies.size(); }
  };

  void Push(Item item) LARDER_EXCLUDES(mu_);
  // If the first item has copies that no thread has begun, makes some of them.  Unlocks mu_
  // meanwhile.  Returns false if there are none.
  bool CopySome() LARDER_REQUIRES(mu_);
  [[nodiscard]] static std::span<const DeviceCopy> Take(Item& item);
  void Finish() LARDER_REQUIRES(mu_);

  mutable Mutex mu_;
  std::deque<Item> items_ LARDER_GUARDED_BY(mu_);  // not done yet
  uint64_t done_ LARDER_GUARDED_BY(mu_) = 0;       // items
  bool ending_ LARDER_GUARDED_BY(mu_) = false;
  CondVar changed_;  // an item was added or is done, or ending_ was set
};

}  // namespace larder
