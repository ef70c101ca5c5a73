// How fast this machine's memory is at the moment: machines differ by three, and one and the same
// from minute to minute, so that a figure of copies says little without it.
//
// In GB/s of bytes copied: a byte that is read and written counts once, and a GB is 1e9 bytes.  The
// fastest kernel of storage/memory/copy_kernels.h, by one thread and by two, over memory that is in
// no cache: a ring that is 256 MiB larger than the last-level cache, copied piece by piece to half
// a ring further on.  Its pages are what the system gives without being asked, as the pool's are.
// Ownership: owns its ring, from the first round on; child processes do not get it.
// Thread-safety: none.
// Limits: 20 to 100 ms a round, and once some tenths of a second for the ring.  Where there is no
// memory for it, no speed is known.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/memory/copy_kernels.h"

namespace larder::bench {

class MemorySpeed {
 public:
  struct GbPerSecond {
    double one_thread = 0, two_threads = 0;
  };
  static constexpr size_t kBeyondCacheBytes = 256 << 20;
  static constexpr size_t kPieceBytes = 64 << 20;  // of a copy that is timed

  MemorySpeed() = default;
  ~MemorySpeed();
  MemorySpeed(const MemorySpeed&) = delete;
  MemorySpeed& operator=(const MemorySpeed&) = delete;

  // A round: every kernel once, by one thread and by two.
  void Measure();
  // From here on other rounds count.
  void Forget();
  // Of the rounds since, the medians of the kernel whose median is the best; nullopt: there are
  // none.
  [[nodiscard]] std::optional<GbPerSecond> Get() const;
  // Of the last round's end (SecondsNow); 0: there was none.
  [[nodiscard]] double measured_at() const { return measured_at_; }

 private:
  // Of one number of threads.
  using Rates = std::vector<std::vector<double>>;  // [kernel][round], bytes per second

  void Map();
  [[nodiscard]] double CopyPiece(const CopyKernel& kernel, size_t threads);

  const std::vector<CopyKernel> kernels_ = AllKernels();
  std::span<std::byte> ring_;
  bool mapped_ = false;  // or it was tried
  size_t next_piece_ = 0;
  std::array<Rates, 2> rates_;  // by one thread, by two
  double measured_at_ = 0;
};

// For a table, "17.3 30.1", and for a line of JSON, "[17.3,30.1]".  Unknown: "-", "null".
[[nodiscard]] std::string ToText(const std::optional<MemorySpeed::GbPerSecond>& speed);
[[nodiscard]] std::string ToJson(const std::optional<MemorySpeed::GbPerSecond>& speed);

}  // namespace larder::bench
