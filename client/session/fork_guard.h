// Remembers in which process an object was made, to detect that a forked child holds it.
//
// It is a counter that a fork handler increments in the child, because the objects of a session
// check it several times per call and getpid is a system call.  It detects fork(), not a bare
// clone().
// Thread-safety: All methods may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace larder {

class ForkGuard {
 public:
  ForkGuard();
  // Returns true in a forked child of the process that made the object.
  [[nodiscard]] bool left() const {
    return generation_ != current_.load(std::memory_order_relaxed);
  }

 private:
  static std::atomic<uint32_t> current_;
  uint32_t generation_;
};

}  // namespace larder
