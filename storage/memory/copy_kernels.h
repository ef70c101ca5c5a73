// Ways to copy memory (kernels), and the choice of the fastest one on this host.
//
// Hosts differ: non-temporal AVX-512 stores are 1.5 times as fast as libc's memcpy on one host and
// slower on another.  So a kernel is chosen at run time, by CPU features and a short measurement.
// A kernel is not a memmove: source and destination must not overlap.
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
  // Copies `from` both to `to` and to `also`, and reads each byte of `from` only once.  The stores
  // to `also` go through the cache, so a short `also` can then be read from the cache.
  using Tee = void (*)(std::byte* to, std::byte* also, const std::byte* from, size_t bytes);
  // `tee` may be null; CopyAndHash then copies through a buffer.
  constexpr CopyKernel(const char* name, Function function, Tee tee = nullptr)
      : name_(name), function_(function), tee_(tee) {}

  [[nodiscard]] const char* name() const { return name_; }
  // Copies all of `from`.  Other cores may see non-temporal stores late, so the caller calls
  // StoreFence() before it tells another thread that the copy is complete.
  // REQUIRES: to.size() >= from.size().
  void Copy(std::span<std::byte> to, std::span<const std::byte> from) const;
  // Copies all of `from`, and returns the XXH3-64 (seed 0) of the bytes that it has written to
  // `to`.  They may differ from what `from` has later, if another process changes `from`.  The
  // caller calls StoreFence() before it tells another thread that the copy is complete.
  // REQUIRES: to.size() >= from.size(), and no other thread or process writes `to` meanwhile.
  [[nodiscard]] uint64_t CopyAndHash(std::span<std::byte> to,
                                     std::span<const std::byte> from) const;

 private:
  const char* name_;
  Function function_;
  Tee tee_;
};

// Orders the stores of the calling thread, including non-temporal ones: no other core sees a store
// after the fence before it sees all stores before the fence.
void StoreFence();

// Returns libc's memcpy, the baseline for every other kernel.
[[nodiscard]] CopyKernel MemcpyKernel();
// Returns all kernels that this CPU can run, memcpy first.
[[nodiscard]] std::vector<CopyKernel> AllKernels();
// Returns the kernel of AllKernels() that copies fastest from memory to memory (not from a cache),
// by a short measurement at the first call in this process.  Returns memcpy without a measurement
// if there is no other kernel, or no memory to measure with.
[[nodiscard]] const CopyKernel& ChooseKernel();

}  // namespace larder
