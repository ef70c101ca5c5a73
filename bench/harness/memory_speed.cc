#include "bench/harness/memory_speed.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_format.h"
#include "bench/harness/harness.h"

namespace larder::bench {
namespace {

// Returns 0 if the system does not tell.
size_t LastLevelCacheBytes() {
  const long bytes = std::max({sysconf(_SC_LEVEL4_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE),
                               sysconf(_SC_LEVEL2_CACHE_SIZE), 0L});
  return static_cast<size_t>(bytes);
}

}  // namespace

MemorySpeed::~MemorySpeed() {
  if (!ring_.empty()) munmap(ring_.data(), ring_.size());
}

// The ring is populated at once, so that no round pays for first touches.  Child processes do not
// inherit it: after a fork, the next round would pay for taking each page back.
void MemorySpeed::Map() {
  if (mapped_) return;
  mapped_ = true;
  const size_t turns = (LastLevelCacheBytes() + kBeyondCacheBytes) / (2 * kPieceBytes) + 1;
  const size_t bytes = turns * 2 * kPieceBytes;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) return;
  ring_ = {static_cast<std::byte*>(at), bytes};
  (void)madvise(at, bytes, MADV_DONTFORK);  // only a hint
}

void MemorySpeed::Measure() {
  Map();
  if (ring_.empty()) return;
  for (size_t threads = 1; threads <= rates_.size(); ++threads) {
    Rates& rates = rates_[threads - 1];
    rates.resize(kernels_.size());
    for (size_t k = 0; k < kernels_.size(); ++k)
      rates[k].push_back(CopyPiece(kernels_[k], threads));
  }
  measured_at_ = SecondsNow();
}

// Copies the next piece to half a ring further on, so that the whole ring is used before the same
// bytes are used again.  Timed from when the first thread begins until the last one ends.
double MemorySpeed::CopyPiece(const CopyKernel& kernel, size_t threads) {
  const size_t from = next_piece_;
  next_piece_ = (next_piece_ + kPieceBytes) % ring_.size();
  const size_t to = (from + ring_.size() / 2) % ring_.size();
  const size_t share = kPieceBytes / threads;
  std::vector<double> begun(threads), ended(threads);
  std::atomic<size_t> here{0};
  const auto copy = [&](size_t thread) {
    ++here;
    while (here.load() < threads) std::this_thread::yield();  // wait for the others
    begun[thread] = SecondsNow();
    kernel.Copy(ring_.subspan(to + thread * share, share),
                ring_.subspan(from + thread * share, share));
    StoreFence();
    ended[thread] = SecondsNow();
  };
  std::vector<std::thread> others;
  for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(copy, thread);
  copy(0);
  for (std::thread& other : others) other.join();
  const double seconds =
      *std::max_element(ended.begin(), ended.end()) - *std::min_element(begun.begin(), begun.end());
  return kPieceBytes / seconds;
}

void MemorySpeed::Forget() {
  for (Rates& rates : rates_) rates.clear();
}

std::optional<MemorySpeed::GbPerSecond> MemorySpeed::Get() const {
  if (rates_[0].empty()) return std::nullopt;
  const auto best = [](const Rates& rates) { return Median(rates[Fastest(rates)]) / 1e9; };
  return GbPerSecond{best(rates_[0]), best(rates_[1])};
}

std::string ToText(const std::optional<MemorySpeed::GbPerSecond>& speed) {
  if (!speed) return "-";
  return absl::StrFormat("%.1f %.1f", speed->one_thread, speed->two_threads);
}

std::string ToJson(const std::optional<MemorySpeed::GbPerSecond>& speed) {
  if (!speed) return "null";
  return absl::StrFormat("[%.3g,%.3g]", speed->one_thread, speed->two_threads);
}

}  // namespace larder::bench
