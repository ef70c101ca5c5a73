// Basic types and constants of all of Larder's code.  Includes no other header of this repository.
//
// Strong types keep bytes, tokens and ids apart, and cost no more than the integers inside them.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>

namespace larder {

// An integer with a unit.  It adds to and compares with values of the same unit only.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(uint64_t value) : value_(value) {}

  [[nodiscard]] constexpr uint64_t value() const { return value_; }
  constexpr Quantity& operator+=(Quantity o) {
    value_ += o.value_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    value_ -= o.value_;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value_ + b.value_);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value_ - b.value_);
  }
  friend constexpr auto operator<=>(Quantity, Quantity) = default;

 private:
  uint64_t value_ = 0;
};

using ByteCount = Quantity<struct ByteTag>;
using TokenCount = Quantity<struct TokenTag>;

inline constexpr ByteCount KiB(uint64_t n) { return ByteCount(n << 10); }
inline constexpr ByteCount MiB(uint64_t n) { return ByteCount(n << 20); }
inline constexpr ByteCount GiB(uint64_t n) { return ByteCount(n << 30); }

// A number that names one object of one kind.  Zero names none.
template <class Tag>
struct Id {
  uint64_t value = 0;
  [[nodiscard]] constexpr explicit operator bool() const { return value != 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value);
  }
};

using SessionId = Id<struct SessionTag>;
using LeaseId = Id<struct LeaseTag>;
using ReservationId = Id<struct ReservationTag>;
using ProcessId = Id<struct ProcessTag>;  // the daemon's number for an attached process, not a pid

// The first 16 bytes of a SHA-256: content ids, variant ids, steps of the digest chain.
struct Digest {
  std::array<std::byte, 16> bytes{};

  // Not defaulted, since that would compare byte by byte, which made lookups slow.
  friend bool operator==(const Digest& a, const Digest& b) {
    return std::memcmp(a.bytes.data(), b.bytes.data(), sizeof a.bytes) == 0;
  }
  friend auto operator<=>(const Digest&, const Digest&) = default;
  // The first 8 bytes.  They are uniform, as part of a hash, unless a client invented the digest.
  [[nodiscard]] uint64_t Hash64() const {
    uint64_t v;
    std::memcpy(&v, bytes.data(), sizeof v);
    return v;
  }
  [[nodiscard]] std::string Hex() const;  // 32 lower-case digits
  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine(std::move(h), d.Hash64());
  }
};
inline constexpr size_t kDigestBytes = 16;

// What is known of the process that stored a block: its uid, from the kernel, and the number
// (EngineNumber) of the engine id that the process itself stated.
struct BlockWriter {
  static constexpr uint32_t kUnknownUid = UINT32_MAX;  // no user has it
  uint32_t uid = kUnknownUid;
  uint16_t engine = 0;  // 0: unknown
  // Whether this writer, used as a filter, selects `other`.  The uids must be equal.  The engines
  // must be equal too, unless this writer's engine is 0.
  [[nodiscard]] constexpr bool Covers(const BlockWriter& other) const {
    return uid == other.uid && (engine == 0 || engine == other.engine);
  }
  friend bool operator==(const BlockWriter&, const BlockWriter&) = default;
};

// Names device memory that a process shares with others through the daemon.  The ticket is random;
// any process of the same uid that knows it may open the memory until the sharing ends.
using ShareTicket = std::array<std::byte, 16>;

inline constexpr uint32_t kStepTokens = 16;  // tokens per step of the digest chain

enum class Tier : uint8_t { kDevice = 1, kHost = 2, kDisk = 3, kRemote = 4 };
using TierSet = uint8_t;  // a union of TierBit values
[[nodiscard]] constexpr TierSet TierBit(Tier tier) {
  return static_cast<TierSet>(1u << static_cast<int>(tier));
}
enum class Codec : uint8_t { kIdentity = 1, kLossless = 2, kQuantized = 3, kJoint = 4 };

// The result for a key or for a call.  The numbers are those of larder.v1.BlockStatus on the wire.
enum class BlockStatus : uint8_t {
  kOk = 1,
  kMissing = 2,
  kPending = 3,
  kDuplicate = 4,
  kFull = 5,
  kInvalid = 6,
  kDamaged = 7,
  kNotHeld = 8,
  kCancelled = 9,
  kUnsupported = 10,
  kKept = 11,
};
[[nodiscard]] const char* ToString(BlockStatus status);
[[nodiscard]] const char* ToString(Tier tier);

// Token positions [begin, end).
struct TokenRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

inline constexpr uint64_t kPageBytes = 4096;  // extents start and end at multiples of this
// segments start at multiples of this inside an extent
inline constexpr uint64_t kSegmentAlign = 64;
[[nodiscard]] constexpr uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

enum class SlabId : uint16_t {};
// Every slab of the pool is smaller than this, because the index packs an extent's first page and
// its number of pages into 24 bits each.
inline constexpr ByteCount kSlabBytesLimit = GiB(64);

[[nodiscard]] constexpr ByteCount BytesOfPages(uint32_t pages) {
  return ByteCount(uint64_t{pages} * kPageBytes);
}

// Consecutive pages of one slab of the pool, or of one data file of the disk.  Empty if pages == 0.
struct Extent {
  SlabId slab{};
  uint32_t page = 0;
  uint32_t pages = 0;

  [[nodiscard]] constexpr uint64_t offset() const { return uint64_t{page} * kPageBytes; }
  [[nodiscard]] constexpr ByteCount bytes() const { return BytesOfPages(pages); }
  friend bool operator==(const Extent&, const Extent&) = default;
};
[[nodiscard]] constexpr uint32_t PagesFor(ByteCount bytes) {
  return static_cast<uint32_t>(RoundUp(bytes.value(), kPageBytes) / kPageBytes);
}

}  // namespace larder
