// Ways to copy memory, and which of them is the fastest on this host.
//
// Machines differ: non-temporal AVX-512 stores are half as fast again as libc's memcpy on one and
// slower on another.  So each Client and each daemon chooses its kernel once, by CPU features and a
// short measurement.  Not a memmove: source and destination must not overlap.
//
// Ownership: values.  Thread-safety: pure functions.
// Limits: any length, any alignment.  On other CPUs than x86-64 there is memcpy only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace larder {

class CopyKernel {
 public:
  using Function = void (*)(std::byte* to, const std::byte* from, size_t bytes);
  // Copies `from` to both `to` and `also`, which stays in the cache, and reads each byte of `from`
  // once.
  using Tee = void (*)(std::byte* to, std::byte* also, const std::byte* from, size_t bytes);
  // `tee` is null if the kernel has none that is faster than two copies.
  constexpr CopyKernel(const char* name, Function function, Tee tee = nullptr)
      : name_(name), function_(function), tee_(tee) {}

  [[nodiscard]] const char* name() const { return name_; }
  // Copies all of `from`.  Other cores may see non-temporal stores late, so the caller calls
  // StoreFence() before it tells another thread that the bytes are there.
  // REQUIRES: to.size() >= from.size().
  void Copy(std::span<std::byte> to, std::span<const std::byte> from) const;
  // As Copy, and returns XXH3-64 (seed 0) of the bytes written.  The hash is of those and not of
  // `from`, which another process may change at any moment.
  [[nodiscard]] uint64_t CopyAndHash(std::span<std::byte> to,
                                     std::span<const std::byte> from) const;

 private:
  const char* name_;
  Function function_;
  Tee tee_;
};

// Orders stores, non-temporal ones too: other cores see those before the fence before those after
// it.  Free if no store is outstanding.
void StoreFence();

// libc's memcpy, the baseline for every other kernel.
[[nodiscard]] CopyKernel MemcpyKernel();
// All kernels that this CPU can run, memcpy first.
[[nodiscard]] std::vector<CopyKernel> AllKernels();
// Returns the one of AllKernels() that copies fastest from memory to memory, by a measurement of
// about 15 ms.
[[nodiscard]] CopyKernel ChooseKernel();

}  // namespace larder
