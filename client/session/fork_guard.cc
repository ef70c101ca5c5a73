#include "client/session/fork_guard.h"

#include <pthread.h>

namespace larder {

std::atomic<uint32_t> ForkGuard::current_{0};

ForkGuard::ForkGuard() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;  // fails only if memory is exhausted
  generation_ = current_.load(std::memory_order_relaxed);
}

}  // namespace larder
