// How much work the daemon takes on at once: calls, sessions, and bytes of messages under way.
//
// Keeps the daemon's own memory bounded under any offered load: what does not fit is refused at the
// door, at once, with a hint when to come back; nothing queues here.  Each gate is exact: never
// more inside than its limit, also while many threads knock.
//
// Does not know fairness between callers (quotas per tenant are another thing), nor gRPC: a service
// turns a refusal into RESOURCE_EXHAUSTED with `larder-retry-after-ms`.
// Ownership: made by server/main, outlives every ticket.
// Thread-safety: Admission from any thread; a ticket from one thread at a time.
// Lifecycle: Enter -> the ticket lives as long as the work -> dropped.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "storage/clock.h"
#include "storage/types.h"

namespace larder {

class Admission {
 public:
  enum class Gate : uint8_t { kCalls, kSessions, kBytes };

  struct Limits {
    uint64_t calls_max = 256;  // all but the sessions' streams
    uint64_t sessions_max = 1024;
    ByteCount bytes_max = MiB(256);  // of messages under way
  };

  // So much of a gate, until dropped.  Empty when default-made or moved from.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept {
      if (this != &other) {
        Reset();
        inside_ = std::exchange(other.inside_, nullptr);
        amount_ = std::exchange(other.amount_, 0);
      }
      return *this;
    }
    ~Ticket() { Reset(); }
    [[nodiscard]] explicit operator bool() const { return inside_ != nullptr; }
    // Gives back all but `amount`.
    void ShrinkTo(uint64_t amount) {
      if (inside_ == nullptr || amount >= amount_) return;
      inside_->fetch_sub(amount_ - amount, std::memory_order_relaxed);
      amount_ = amount;
    }
    void Reset() {
      if (inside_ != nullptr) inside_->fetch_sub(amount_, std::memory_order_relaxed);
      inside_ = nullptr;
    }

   private:
    friend class Admission;
    Ticket(std::atomic<uint64_t>* inside, uint64_t amount) : inside_(inside), amount_(amount) {}
    std::atomic<uint64_t>* inside_ = nullptr;
    uint64_t amount_ = 0;
  };

  struct Answer {
    Ticket ticket;           // empty: refused
    Duration retry_after{};  // when refused; zero: never fits, do not come back with so much
    [[nodiscard]] bool admitted() const { return static_cast<bool>(ticket); }
  };

  explicit Admission(const Limits& limits);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  [[nodiscard]] Answer EnterCall() { return Enter(Gate::kCalls, 1); }
  [[nodiscard]] Answer EnterSession() { return Enter(Gate::kSessions, 1); }
  [[nodiscard]] Answer EnterBytes(ByteCount bytes) { return Enter(Gate::kBytes, bytes.value()); }

  [[nodiscard]] uint64_t inside(Gate gate) const { return Of(gate).inside.load(); }
  [[nodiscard]] uint64_t refused(Gate gate) const { return Of(gate).refused.load(); }

 private:
  struct alignas(64) State {
    uint64_t max = 0;  // const after construction
    Duration pause{};  // the shortest retry hint
    std::atomic<uint64_t> inside{0};
    std::atomic<uint64_t> refused{0};
  };
  [[nodiscard]] Answer Enter(Gate gate, uint64_t amount);
  [[nodiscard]] const State& Of(Gate gate) const { return states_[static_cast<size_t>(gate)]; }

  std::array<State, 3> states_;  // by Gate
};

}  // namespace larder
