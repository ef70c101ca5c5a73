// The shapes of blocks in benchmarks.  Depends on neither client nor server, so that both sides
// include it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "storage/format/block_key.h"

namespace larder::bench {

inline constexpr uint32_t kBlockTokens = 16;

struct BlockShape {
  std::string name;  // "1mib"
  uint32_t segments = 1;
  uint64_t segment_bytes = 0;  // a multiple of 64, so that a payload has no padding
  [[nodiscard]] uint64_t bytes() const { return segments * segment_bytes; }
};
// 64 KiB: one segment; 1 MiB: 16 of 64 KiB; 8 MiB: 32 of 256 KiB.
[[nodiscard]] std::span<const BlockShape> Shapes();
[[nodiscard]] const BlockShape& ShapeNamed(std::string_view name);

[[nodiscard]] ContentSpec BenchContent();
[[nodiscard]] VariantSpec BenchVariant(const BlockShape& shape);

}  // namespace larder::bench
