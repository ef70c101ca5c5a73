// Ways to copy memory, and which of them is the fastest on this host.
//
// Machines differ: non-temporal AVX-512 stores beat libc's memcpy by half on one, lose on another.
// So the kernel is chosen by CPU feature and a short measurement, once per Client and per daemon.
// Not a memmove: source and destination must not overlap.
//
// Ownership: values.  Thread-safety: pure functions.
// Limits: any length, any alignment.  Off x86-64 there is memcpy only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace larder {

class CopyKernel {
 public:
  using Function = void (*)(std::byte* to, const std::byte* from, size_t bytes);
  // Writes the same to `also`, which stays in the cache; reads each byte of `from` once.
  using Tee = void (*)(std::byte* to, std::byte* also, const std::byte* from, size_t bytes);
  // `tee`: null where there is none that is faster than two copies.
  constexpr CopyKernel(const char* name, Function function, Tee tee = nullptr)
      : name_(name), function_(function), tee_(tee) {}

  [[nodiscard]] const char* name() const { return name_; }
  // Copies all of `from`.  Non-temporal stores may be seen late by other cores: StoreFence() before
  // telling them.
  // REQUIRES: to.size() >= from.size().
  void Copy(std::span<std::byte> to, std::span<const std::byte> from) const;
  // The same, and XXH3-64 (seed 0) of what was written: another process may change `from` at any
  // moment.
  [[nodiscard]] uint64_t CopyAndHash(std::span<std::byte> to,
                                     std::span<const std::byte> from) const;

 private:
  const char* name_;
  Function function_;
  Tee tee_;
};

// Stores before it are seen before those after it, also non-temporal ones.  Free where nothing is
// outstanding.
void StoreFence();

// libc's memcpy; what everything is compared with.
[[nodiscard]] CopyKernel MemcpyKernel();
// All that this CPU can run, memcpy first.
[[nodiscard]] std::vector<CopyKernel> AllKernels();
// The fastest of them out of memory, in a measurement of about 15 ms.
[[nodiscard]] CopyKernel ChooseKernel();

}  // namespace larder
