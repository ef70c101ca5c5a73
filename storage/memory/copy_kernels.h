// Ways to copy memory (kernels), and the choice of the fastest one on this host.
//
// Hosts differ: non-temporal AVX-512 stores are 1.5 times as fast as libc's memcpy on one host and
// slower on another.  So each Client and each daemon chooses its kernel once, by CPU features and a
// short measurement.  A kernel is not a memmove: source and destination must not overlap.
//
// Ownership: values.  Thread-safety: pure functions.
// Limits: any length, any alignment.  On CPUs other than x86-64 memcpy is the only kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace larder {

class CopyKernel {
 public:
  using Function = void (*)(std::byte* to, const std::byte* from, size_t bytes);
  // Copies `from` both to `to` and to `also`, and reads each byte of `from` only once.  `also` is
  // in the cache afterwards.
  using Tee = void (*)(std::byte* to, std::byte* also, const std::byte* from, size_t bytes);
  // `tee` is null if the kernel has none; CopyAndHash then makes two copies.
  constexpr CopyKernel(const char* name, Function function, Tee tee = nullptr)
      : name_(name), function_(function), tee_(tee) {}

  [[nodiscard]] const char* name() const { return name_; }
  // Copies all of `from`.  Other cores may see non-temporal stores late, so the caller calls
  // StoreFence() before it tells another thread that the copy is complete.
  // REQUIRES: to.size() >= from.size().
  void Copy(std::span<std::byte> to, std::span<const std::byte> from) const;
  // As Copy, and returns the XXH3-64 (seed 0) of the bytes that were written to `to`.  These may
  // differ from `from` afterwards, which another process may change at any moment.
  [[nodiscard]] uint64_t CopyAndHash(std::span<std::byte> to,
                                     std::span<const std::byte> from) const;

 private:
  const char* name_;
  Function function_;
  Tee tee_;
};

// Orders stores, including non-temporal ones: no other core sees a store after the fence before it
// sees all stores before the fence.  Costs nothing if no store is outstanding.
void StoreFence();

// libc's memcpy, the baseline for every other kernel.
[[nodiscard]] CopyKernel MemcpyKernel();
// All kernels that this CPU can run, memcpy first.
[[nodiscard]] std::vector<CopyKernel> AllKernels();
// Returns the kernel of AllKernels() that copies fastest from memory to memory (not from a cache).
// The measurement takes about 15 ms.
[[nodiscard]] CopyKernel ChooseKernel();

}  // namespace larder
