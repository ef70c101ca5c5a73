// Shows that a loop still makes progress: a watcher asks, and the loop answers in its next
// iteration.
//
// Ask does not wake the loop.  If the loop may be asleep, the watcher must wake it.
// Thread-safety: one thread calls Ask and Answered; the loop's thread calls Answer.
#pragma once

#include <atomic>
#include <cstdint>

namespace larder {

class Heartbeat {
 public:
  void Ask() { asked_.fetch_add(1); }
  void Answer() { answered_.store(asked_.load()); }
  // Returns true if the loop has answered since the last Ask, or if Ask was never called.
  [[nodiscard]] bool Answered() const { return answered_.load() == asked_.load(); }

 private:
  std::atomic<uint64_t> asked_{0};
  std::atomic<uint64_t> answered_{0};
};

}  // namespace larder
