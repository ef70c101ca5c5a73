// How fast this machine's memory is at the moment.  Machines differ by a factor of three, and one
// machine differs as much from minute to minute, so a figure of copies says little without it.
//
// In GB/s of bytes copied: a byte that is read and written counts once, and a GB is 1e9 bytes.  The
// fastest kernel of storage/memory/copy_kernels.h, with one thread and with two, over memory that
// is in no cache: a ring that is 256 MiB larger than the last-level cache, copied piece by piece to
// half a ring further on.  Its pages have the size that the system gives by default, as the pool's
// have.
// Ownership: owns its ring, from the first round on; child processes do not inherit it.
// Thread-safety: none.
// Limits: 20 to 100 ms a round, and once some tenths of a second for the ring.  If there is no
// memory for the ring, no speed is reported.
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
  static constexpr size_t kPieceBytes = 64 << 20;  // copied and timed at once

  MemorySpeed() = default;
  ~MemorySpeed();
  MemorySpeed(const MemorySpeed&) = delete;
  MemorySpeed& operator=(const MemorySpeed&) = delete;

  // Runs one round: every kernel once with one thread and once with two.
  void Measure();
  // Discards the rounds so far.
  void Forget();
  // The medians, over the rounds since then, of the kernel with the best median; nullopt if there
  // were no rounds.
  [[nodiscard]] std::optional<GbPerSecond> Get() const;
  // When the last round ended (SecondsNow); 0 if there was none.
  [[nodiscard]] double measured_at() const { return measured_at_; }

 private:
  // For one number of threads.
  using Rates = std::vector<std::vector<double>>;  // [kernel][round], bytes per second

  void Map();
  [[nodiscard]] double CopyPiece(const CopyKernel& kernel, size_t threads);

  const std::vector<CopyKernel> kernels_ = AllKernels();
  std::span<std::byte> ring_;
  bool mapped_ = false;  // also if it failed
  size_t next_piece_ = 0;
  std::array<Rates, 2> rates_;  // with one thread, with two
  double measured_at_ = 0;
};

// For a table, "17.3 30.1", and for a line of JSON, "[17.3,30.1]".  An unknown speed is "-",
// "null".
[[nodiscard]] std::string ToText(const std::optional<MemorySpeed::GbPerSecond>& speed);
[[nodiscard]] std::string ToJson(const std::optional<MemorySpeed::GbPerSecond>& speed);

}  // namespace larder::bench
