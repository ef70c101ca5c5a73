// What other threads hand to the thread of an event loop: items, and the request to stop.  Both
// wake the event loop.
//
//   WakeQueue<ProcessId> dead(std::move(wake));       // the loop polls dead.fd()
//   dead.Push(process);                               // any thread
//   for (const ProcessId process : dead.Take()) ...   // the loop, at each turn
//
// Thread-safety: Push, Wake and Stop from any thread; the other methods from the loop's thread.
// Locks: mu_ is a leaf.
#pragma once

#include <utility>
#include <vector>

#include "proto/frames/wake_up.h"
#include "storage/mutex.h"

namespace larder {

template <class Item>
class WakeQueue {
 public:
  explicit WakeQueue(WakeUp wake) : wake_(std::move(wake)) {}

  void Push(Item item) LARDER_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      items_.push_back(std::move(item));
    }
    wake_.Wake();
  }
  // Wakes the loop without an item.
  void Wake() const { wake_.Wake(); }
  void Stop() LARDER_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      stopped_ = true;
    }
    wake_.Wake();
  }

  // The descriptor to poll for reading.
  [[nodiscard]] int fd() const { return wake_.fd(); }
  // Makes the descriptor unreadable until the next Push, Wake or Stop.  Items that are pushed after
  // this call wake the loop again, so Clear must be called before Take.
  void Clear() const { wake_.Clear(); }
  // Removes all items and returns them, in the order of their Push.
  [[nodiscard]] std::vector<Item> Take() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return std::exchange(items_, {});
  }
  [[nodiscard]] bool stopped() const LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return stopped_;
  }

 private:
  const WakeUp wake_;
  mutable Mutex mu_;
  std::vector<Item> items_ LARDER_GUARDED_BY(mu_);
  bool stopped_ LARDER_GUARDED_BY(mu_) = false;
};

}  // namespace larder
