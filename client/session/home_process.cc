#include "client/session/home_process.h"

#include <pthread.h>

namespace larder {

std::atomic<uint32_t> HomeProcess::current_{0};

HomeProcess::HomeProcess() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current_.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;  // fails only for want of memory
  generation_ = current_.load(std::memory_order_relaxed);
}

}  // namespace larder
