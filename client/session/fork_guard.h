// Remembers in which process an object was made, to detect that a forked child holds it.
//
// A fork handler increments a counter in the child, and a ForkGuard remembers the counter's value
// of when it was made.  The pid would do as well, but getpid is a system call, and a session checks
// its guards several times per call.  Detects fork(), not a bare clone().
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
