// How a test waits for what another thread or process is about to do.
//
// Thread-safety: that of `condition`.
#pragma once

#include <chrono>
#include <thread>

namespace larder {

// Calls condition() every millisecond until it returns true.  Returns false if it did not within
// `limit`.
template <class Condition>
[[nodiscard]] bool Eventually(Condition condition,
                              std::chrono::milliseconds limit = std::chrono::seconds(30)) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace larder
