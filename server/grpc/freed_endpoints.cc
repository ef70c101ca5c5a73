#include "server/grpc/freed_endpoints.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {
namespace {

// `freed` and `kept` are valid before the first object of the program is constructed and after the
// last one is destroyed.
constinit std::atomic<uint64_t> freed{0};

class KeptMemory {
 public:
  void Add(void* memory) LARDER_EXCLUDES(mu_) {
    // Frees up to two objects for each new one, so that the ring empties after a burst.
    for (int i = 0; i < 2; ++i) std::free(TakeOld());
    void* oldest = nullptr;
    {
      MutexLock lock(mu_);
      if (count_ == ring_.size()) oldest = TakeFirst();
      ring_[(first_ + count_++) % ring_.size()] = {memory, SteadyNow()};
    }
    std::free(oldest);
  }

 private:
  struct Kept {
    void* memory = nullptr;
    TimePoint freed;
  };
  // Returns null if no object has been kept for long enough.
  [[nodiscard]] void* TakeOld() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (count_ == 0) return nullptr;
    const bool old = ring_[first_].freed + kKeepFreedEndpoint < SteadyNow();
    return old ? TakeFirst() : nullptr;
  }
  [[nodiscard]] void* TakeFirst() LARDER_REQUIRES(mu_) {
    void* const memory = ring_[first_].memory;
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return memory;
  }

  Mutex mu_;
  std::array<Kept, kFreedEndpointsMax> ring_ LARDER_GUARDED_BY(mu_){};
  size_t first_ LARDER_GUARDED_BY(mu_) = 0, count_ LARDER_GUARDED_BY(mu_) = 0;
};
constinit KeptMemory kept;

}  // namespace

uint64_t FreedEndpoints() { return freed.load(std::memory_order_relaxed); }

}  // namespace larder

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// These replace the standard library's operators for the whole program, including gRPC.
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t bytes) noexcept {
  if (bytes != larder::kEndpointBytes || memory == nullptr) return std::free(memory);
  larder::freed.fetch_add(1, std::memory_order_relaxed);
  larder::kept.Add(memory);
}

#endif
