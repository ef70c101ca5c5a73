// The proof that a loop turns: somebody asks, and the loop answers when it comes round.
//
// Does not wake the loop; who asks does, where it would sleep.
// Thread-safety: Ask and Answered from one thread, Answer from the loop's.
#pragma once

#include <atomic>
#include <cstdint>

namespace larder {

class Heartbeat {
 public:
  void Ask() { asked_.fetch_add(1); }
  void Answer() { answered_.store(asked_.load()); }
  // Whatever was asked is answered.
  [[nodiscard]] bool Answered() const { return answered_.load() == asked_.load(); }

 private:
  std::atomic<uint64_t> asked_{0};
  std::atomic<uint64_t> answered_{0};
};

}  // namespace larder
