// Remembers in which process an object was made, to tell when a forked child has it.
//
// A counter that fork's handler raises in the child, since the objects of a session ask several
// times a call, and getpid is a system call.  Sees fork(), not a bare clone().
// Thread-safety: all.
#pragma once

#include <atomic>
#include <cstdint>

namespace larder {

class ForkGuard {
 public:
  ForkGuard();
  // This is a forked child of the process that made the object.
  [[nodiscard]] bool left() const {
    return generation_ != current_.load(std::memory_order_relaxed);
  }

 private:
  static std::atomic<uint32_t> current_;
  uint32_t generation_;
};

}  // namespace larder
