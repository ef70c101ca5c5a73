// Loads what a scheduler places on a ClaimBoard into the pages of a worker.
//
// Ownership: borrows store and board, which outlive it.
// Thread-safety: all methods from any thread.
// Threads: Options::threads, each with a Mover of the store.
// Lifecycle: made -> destroyed (ends every claim that it has taken; others stay on the board).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <thread>
#include <vector>

#include "client/claims/claim_board.h"
#include "client/engine/page_store.h"

namespace larder {

class ClaimLoader {
 public:
  struct Options {
    uint32_t threads = 1;
    size_t at_once = 16;  // blocks that a thread loads in one call
  };
  struct Stats {  // blocks
    uint64_t loaded = 0, failed = 0;
    uint64_t cancelled = 0;  // withdrawn, or late
  };

  ClaimLoader(PageStore& store, ClaimBoard& board, const Options& options);
  ~ClaimLoader();
  ClaimLoader(const ClaimLoader&) = delete;
  ClaimLoader& operator=(const ClaimLoader&) = delete;

  [[nodiscard]] Stats stats() const;

 private:
  static constexpr std::chrono::milliseconds kLookEvery{100};  // how often a stop is noticed

  void Run(const std::stop_token& stop);
  // Loads claims of one promise.
  void Load(std::span<const ClaimBoard::Claim> claims, PageStore::Mover* mover,
            const std::stop_token& stop);

  PageStore& store_;
  ClaimBoard& board_;
  const Options options_;
  std::atomic<uint64_t> loaded_{0}, failed_{0}, cancelled_{0};
  std::vector<std::jthread> threads_;  // use the members above
};

}  // namespace larder
