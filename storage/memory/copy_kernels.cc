#include "storage/memory/copy_kernels.h"

#define XXH_STATIC_LINKING_ONLY  // needed for an XXH3_state_t on the stack
#include <xxhash.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // vector width chosen at run time
#endif
#endif

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "storage/check.h"
#include "storage/clock.h"
#include "storage/memory/huge_pages.h"
#include "storage/types.h"

namespace larder {
namespace {

// Copies of fewer bytes use libc's memcpy, whose stores go through the cache.
constexpr size_t kSmallBytes = 4096;

// With a kernel that has a tee, CopyAndHash copies this many bytes at a time, both to the
// destination and to a buffer that stays in L1.  Then it prefetches the next piece of the source
// and hashes the buffer, so that the memory is not idle while the CPU hashes.  Measured with copies
// of 1 MiB from random places, on an EPYC with AVX-512, in GB/s: 19.1 with pieces of 2 KiB, 16.2
// with 1 KiB; without the prefetch 15.8 and 13.8.  Hashing the source first and then copying it:
// 17.7; a copy without a hash: 21.3.
constexpr size_t kPieceBytes = 2048;
// The same for a kernel without a tee.  There a prefetch does not help: 15.5 GB/s, 15.8 without it.
constexpr size_t kPieceBytesWithoutTee = 4096;

void CopyMemcpy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

// Starts to load the bytes into the caches; does not wait until they are there.
void Prefetch(std::span<const std::byte> bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes.size(); at += kLine) __builtin_prefetch(&bytes[at]);
}

#if defined(__x86_64__)

void CopyRepMovsb(std::byte* to, const std::byte* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

// Returns how many bytes lie before the first aligned address in `to`, at most `bytes`.
// Non-temporal stores need an aligned destination, so CopyEdge copies these bytes.
size_t HeadBytes(const std::byte* to, size_t align, size_t bytes) {
  const size_t past = reinterpret_cast<uintptr_t>(to) % align;
  return std::min(past == 0 ? 0 : align - past, bytes);
}

// Copies, with ordinary stores, the bytes before and after those that vectors copy.  If kTwice,
// copies `from` to `also` and then `also` to `to`: `from` must not be read twice, since another
// process may change it between the two reads.
template <bool kTwice>
void CopyEdge(std::byte* to, std::byte* also, const std::byte* from, size_t bytes) {
  if constexpr (kTwice) std::memcpy(also, from, bytes);
  std::memcpy(to, kTwice ? also : from, bytes);
}

// Copies to `to`, with stores that bypass the cache, except for the first and the last bytes
// (CopyEdge).  If kTwice, also writes the bytes to `also` with ordinary stores.
template <bool kTwice>
__attribute__((target("avx2"))) void Nt256(std::byte* to, std::byte* also, const std::byte* from,
                                           size_t bytes) {
  const size_t head = HeadBytes(to, 64, bytes);
  CopyEdge<kTwice>(to, also, from, head);
  to += head, from += head, bytes -= head;
  if constexpr (kTwice) also += head;
  for (; bytes >= 128; to += 128, from += 128, bytes -= 128) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* sink = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(sink, a);
    _mm256_stream_si256(sink + 1, b);
    _mm256_stream_si256(sink + 2, c);
    _mm256_stream_si256(sink + 3, d);
    if constexpr (kTwice) {
      auto* second = reinterpret_cast<__m256i*>(also);
      _mm256_storeu_si256(second, a);
      _mm256_storeu_si256(second + 1, b);
      _mm256_storeu_si256(second + 2, c);
      _mm256_storeu_si256(second + 3, d);
      also += 128;
    }
  }
  CopyEdge<kTwice>(to, also, from, bytes);
}

template <bool kTwice>
__attribute__((target("avx512f"))) void Nt512(std::byte* to, std::byte* also, const std::byte* from,
                                              size_t bytes) {
  const size_t head = HeadBytes(to, 64, bytes);
  CopyEdge<kTwice>(to, also, from, head);
  to += head, from += head, bytes -= head;
  if constexpr (kTwice) also += head;
  for (; bytes >= 256; to += 256, from += 256, bytes -= 256) {
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + 64);
    const __m512i c = _mm512_loadu_si512(from + 128);
    const __m512i d = _mm512_loadu_si512(from + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 192), d);
    if constexpr (kTwice) {
      _mm512_storeu_si512(also, a);
      _mm512_storeu_si512(also + 64, b);
      _mm512_storeu_si512(also + 128, c);
      _mm512_storeu_si512(also + 192, d);
      also += 256;
    }
  }
  CopyEdge<kTwice>(to, also, from, bytes);
}

void CopyNt256(std::byte* to, const std::byte* from, size_t bytes) {
  Nt256<false>(to, nullptr, from, bytes);
}
void CopyNt512(std::byte* to, const std::byte* from, size_t bytes) {
  Nt512<false>(to, nullptr, from, bytes);
}

#endif  // __x86_64__

// Anonymous memory, all of whose pages have been touched; empty if mmap fails.
class Arena {
 public:
  explicit Arena(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    bytes_ = {static_cast<std::byte*>(memory), bytes};
    UseHugePages(bytes_);
    for (size_t at = 0; at < bytes; at += kPageBytes) bytes_[at] = std::byte{1};
  }
  ~Arena() {
    if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

#if defined(__x86_64__)
// __builtin_cpu_supports of clang 14 does not know clflushopt.
bool HasClflushopt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_CLFLUSHOPT) != 0;
}
__attribute__((target("clflushopt"))) void FlushLines(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += 64) _mm_clflushopt(bytes.data() + at);
}
void FlushLinesInOrder(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += 64) _mm_clflush(bytes.data() + at);
}
#endif

// Evicts the bytes from all caches on x86-64.  Does nothing on other CPUs, which have no kernels to
// compare.  For 16 MiB, clflush took 37 ms on a recent Xeon, and clflushopt, which CPUs have since
// Skylake and Zen, 0.7 ms.
void Flush(std::span<std::byte> bytes) {
#if defined(__x86_64__)
  static const bool unordered = HasClflushopt();
  if (unordered) {
    FlushLines(bytes);
  } else {
    FlushLinesInOrder(bytes);
  }
  _mm_mfence();
#endif
}

// Copies the whole pieces of 1 MiB in `from`, and appends to *seconds the time that each took.
void TimePieces(const CopyKernel& kernel, std::span<std::byte> to, std::span<const std::byte> from,
                std::vector<double>* seconds) {
  constexpr size_t kPiece = 1 << 20;
  for (size_t at = 0; at + kPiece <= from.size(); at += kPiece) {
    const auto start = SteadyNow();
    kernel.Copy(to.subspan(at, kPiece), from.subspan(at, kPiece));
    StoreFence();
    const std::chrono::duration<double> took = SteadyNow() - start;
    seconds->push_back(took.count());
  }
}

// Returns the median, and reorders `values`, which must not be empty.  A mean would include the
// time in which other processes had the core.
double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Measures copies from memory to memory, and so flushes the caches: for bytes in a cache another
// kernel may be the fastest.  Arena has huge pages because touching small pages takes long.
CopyKernel MeasuredFastest(const std::vector<CopyKernel>& kernels) {
  constexpr size_t kBytes = 8 << 20;
  constexpr int kRounds = 6;
  if (kernels.size() == 1) return kernels.front();
  const Arena arena(2 * kBytes);
  if (arena.bytes().empty()) return kernels.front();
  const std::span<std::byte> from = arena.bytes().first(kBytes);
  const std::span<std::byte> to = arena.bytes().subspan(kBytes);
  std::vector<std::vector<double>> seconds(kernels.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kernels.size(); ++i) {
      Flush(arena.bytes());
      TimePieces(kernels[i], to, from, &seconds[i]);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_kernel : seconds) medians.push_back(Median(of_kernel));
  const auto best = std::ranges::min_element(medians) - medians.begin();
  return kernels[static_cast<size_t>(best)];
}

}  // namespace

void CopyKernel::Copy(std::span<std::byte> to, std::span<const std::byte> from) const {
  LARDER_CHECK(to.size() >= from.size());
  if (from.size() < kSmallBytes) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  function_(to.data(), from.data(), from.size());
}

uint64_t CopyKernel::CopyAndHash(std::span<std::byte> to, std::span<const std::byte> from) const {
  LARDER_CHECK(to.size() >= from.size());
  if (from.size() < kSmallBytes) {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return XXH3_64bits(to.data(), from.size());
  }
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  alignas(64) std::byte piece[kPieceBytesWithoutTee];
  const size_t piece_bytes = tee_ != nullptr ? kPieceBytes : kPieceBytesWithoutTee;
  for (size_t at = 0; at < from.size(); at += piece_bytes) {
    const size_t bytes = std::min(piece_bytes, from.size() - at);
    if (tee_ != nullptr) {
      tee_(to.data() + at, piece, from.data() + at, bytes);
      const size_t next = at + bytes;
      Prefetch(from.subspan(next, std::min(piece_bytes, from.size() - next)));
    } else {
      std::memcpy(piece, from.data() + at, bytes);
      function_(to.data() + at, piece, bytes);
    }
    XXH3_64bits_update(&state, piece, bytes);
  }
  return XXH3_64bits_digest(&state);
}

void StoreFence() {
#if defined(__x86_64__)
  _mm_sfence();
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

CopyKernel MemcpyKernel() { return {"memcpy", CopyMemcpy}; }

std::vector<CopyKernel> AllKernels() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2");
  // If the CPU has AVX2, every kernel of the list, memcpy and rep movsb too, gets a tee made of
  // vector stores: a kernel that is fast for whole blocks may be slow for single pieces.
  const CopyKernel::Tee tee = avx2 ? Nt256<true> : nullptr;
  std::vector<CopyKernel> kernels = {{"memcpy", CopyMemcpy, tee}, {"rep movsb", CopyRepMovsb, tee}};
  if (avx2) kernels.emplace_back("avx2 nt", CopyNt256, Nt256<true>);
  if (__builtin_cpu_supports("avx512f")) kernels.emplace_back("avx512 nt", CopyNt512, Nt512<true>);
  return kernels;
#else
  return {MemcpyKernel()};
#endif
}

const CopyKernel& ChooseKernel() {
  static const CopyKernel fastest = MeasuredFastest(AllKernels());
  return fastest;
}

}  // namespace larder
