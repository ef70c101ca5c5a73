#include "client/claims/claim_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <ctime>

#include "storage/check.h"

namespace larder {
namespace {

using DigestWords = std::array<uint64_t, 2>;

// Not the private kind of futex, because the two threads are in two processes.
void SleepWhile(const std::atomic<uint32_t>& word, uint32_t value,
                std::chrono::milliseconds at_most) {
  const timespec left{.tv_sec = at_most.count() / 1000,
                      .tv_nsec = at_most.count() % 1000 * 1'000'000};
  (void)syscall(SYS_futex, &word, FUTEX_WAIT, value, &left, nullptr, 0);
}

void WakeAll(const std::atomic<uint32_t>& word) {
  (void)syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

enum class ClaimBoard::Phase : uint32_t {
  kOver = 0,
  kPlaced = 1,
  kWithdrawn = 2,
  kWriting = 3,
  kEnded = 4
};

// Words that one process writes and the other reads are atomic, even where their order is given by
// another one: memory that is damaged must not be undefined behaviour, too.
struct ClaimBoard::Slot {
  std::atomic<Phase> phase;
  std::atomic<uint32_t> page;
  std::atomic<uint64_t> promise, deadline_unix_ms;
  std::atomic<uint8_t> status;
  std::array<std::atomic<uint64_t>, 2> digest;
};

struct ClaimBoard::Shared {
  alignas(64) std::atomic<uint32_t> placed;  // claims that were placed, in all; a futex
  alignas(64) std::atomic<uint32_t> ended;   // claims that have ended, in all
  std::array<std::atomic<uint16_t>, kClaimsMax> placed_ring, ended_ring;
  std::array<Slot, kClaimsMax> slots;
};

ClaimBoard::ClaimBoard(std::span<std::byte> memory)
    : shared_(*reinterpret_cast<Shared*>(memory.data())), open_(kClaimsMax) {
  static_assert(sizeof(Shared) <= kBytes && std::atomic<uint64_t>::is_always_lock_free);
  LARDER_CHECK(memory.size() >= kBytes &&
               reinterpret_cast<uintptr_t>(memory.data()) % alignof(Shared) == 0);
  for (size_t i = kClaimsMax; i > 0; --i) free_.push_back(static_cast<ClaimId>(i - 1));
}

std::vector<ClaimId> ClaimBoard::TakeFrom(const std::atomic<uint32_t>& written,
                                          const std::atomic<uint16_t>* ring, uint32_t* taken,
                                          size_t at_most) {
  const uint32_t there = written.load(std::memory_order_acquire) - *taken;
  std::vector<ClaimId> claims;
  if (there > kClaimsMax) broken_ = true;
  for (size_t i = 0; !broken_ && i < std::min<size_t>(there, at_most); ++i) {
    const uint16_t claim = ring[(*taken)++ % kClaimsMax].load(std::memory_order_relaxed);
    if (claim < kClaimsMax) {
      claims.push_back(static_cast<ClaimId>(claim));
    } else {
      broken_ = true;
    }
  }
  return claims;
}

// ---- the scheduler

std::optional<ClaimId> ClaimBoard::Place(const Work& work) {
  if (free_.empty() || broken_) return std::nullopt;
  const ClaimId claim = free_.back();
  free_.pop_back();
  open_[static_cast<size_t>(claim)] = true;
  Slot& slot = shared_.slots[static_cast<size_t>(claim)];
  slot.page.store(work.page, std::memory_order_relaxed);
  slot.promise.store(work.promise.value, std::memory_order_relaxed);
  slot.deadline_unix_ms.store(work.deadline_unix_ms, std::memory_order_relaxed);
  const auto digest = std::bit_cast<DigestWords>(work.digest.bytes);
  for (size_t i = 0; i < digest.size(); ++i)
    slot.digest[i].store(digest[i], std::memory_order_relaxed);
  slot.phase.store(Phase::kPlaced, std::memory_order_relaxed);
  const uint32_t number = shared_.placed.load(std::memory_order_relaxed);
  shared_.placed_ring[number % kClaimsMax].store(static_cast<uint16_t>(claim),
                                                 std::memory_order_relaxed);
  shared_.placed.store(number + 1, std::memory_order_release);
  WakeAll(shared_.placed);
  return claim;
}

bool ClaimBoard::Writes(ClaimId claim) const {
  return shared_.slots[static_cast<size_t>(claim)].phase.load() == Phase::kWriting;
}

bool ClaimBoard::Withdraw(ClaimId claim) {
  Slot& slot = shared_.slots[static_cast<size_t>(claim)];
  Phase placed = Phase::kPlaced;
  return slot.phase.compare_exchange_strong(placed, Phase::kWithdrawn) ||
         placed == Phase::kWithdrawn;
}

std::vector<ClaimBoard::Ended> ClaimBoard::TakeEnded() {
  std::vector<Ended> ended;
  for (const ClaimId claim :
       TakeFrom(shared_.ended, shared_.ended_ring.data(), &ends_taken_, kClaimsMax)) {
    Slot& slot = shared_.slots[static_cast<size_t>(claim)];
    const uint8_t status = slot.status.load(std::memory_order_relaxed);
    // A claim that is ended twice would be free twice.
    if (!open_[static_cast<size_t>(claim)] || slot.phase.exchange(Phase::kOver) != Phase::kEnded ||
        status < static_cast<uint8_t>(BlockStatus::kOk) ||
        status > static_cast<uint8_t>(BlockStatus::kKept)) {
      broken_ = true;
      break;
    }
    ended.push_back({claim, static_cast<BlockStatus>(status)});
    open_[static_cast<size_t>(claim)] = false;
    free_.push_back(claim);
  }
  return ended;
}

// ---- the worker

std::vector<ClaimBoard::Claim> ClaimBoard::Take(size_t at_most,
                                                std::chrono::milliseconds patience) {
  for (const bool last : {false, true}) {
    uint32_t seen = 0;
    std::vector<Claim> claims;
    {
      MutexLock lock(mu_);
      const std::vector<ClaimId> placed =
          TakeFrom(shared_.placed, shared_.placed_ring.data(), &placed_taken_, at_most);
      seen = placed_taken_;
      for (const ClaimId id : placed) {
        const Slot& slot = shared_.slots[static_cast<size_t>(id)];
        const Phase phase = slot.phase.load();
        if (phase == Phase::kWithdrawn) {
          PushEnd(id, BlockStatus::kCancelled);
          continue;
        }
        if (phase != Phase::kPlaced) {
          broken_ = true;
          break;
        }
        Claim claim{.id = id, .work = {}};
        claim.work.page = slot.page.load(std::memory_order_relaxed);
        claim.work.promise.value = slot.promise.load(std::memory_order_relaxed);
        claim.work.deadline_unix_ms = slot.deadline_unix_ms.load(std::memory_order_relaxed);
        DigestWords digest;
        for (size_t i = 0; i < digest.size(); ++i)
          digest[i] = slot.digest[i].load(std::memory_order_relaxed);
        claim.work.digest.bytes = std::bit_cast<decltype(Digest::bytes)>(digest);
        claims.push_back(claim);
      }
    }
    if (last || !claims.empty()) return claims;
    if (broken_) seen = shared_.placed.load();  // whatever is placed is not taken
    SleepWhile(shared_.placed, seen, patience);
  }
  return {};
}

bool ClaimBoard::BeginWrite(ClaimId claim) {
  Phase placed = Phase::kPlaced;
  return shared_.slots[static_cast<size_t>(claim)].phase.compare_exchange_strong(placed,
                                                                                 Phase::kWriting);
}

bool ClaimBoard::Wanted(ClaimId claim) const {
  return shared_.slots[static_cast<size_t>(claim)].phase.load() != Phase::kWithdrawn;
}

void ClaimBoard::End(ClaimId claim, BlockStatus status) {
  MutexLock lock(mu_);
  PushEnd(claim, status);
}

void ClaimBoard::PushEnd(ClaimId claim, BlockStatus status) {
  Slot& slot = shared_.slots[static_cast<size_t>(claim)];
  slot.status.store(static_cast<uint8_t>(status), std::memory_order_relaxed);
  slot.phase.store(Phase::kEnded, std::memory_order_release);
  const uint32_t number = shared_.ended.load(std::memory_order_relaxed);
  shared_.ended_ring[number % kClaimsMax].store(static_cast<uint16_t>(claim),
                                                std::memory_order_relaxed);
  shared_.ended.store(number + 1, std::memory_order_release);
}

}  // namespace larder
