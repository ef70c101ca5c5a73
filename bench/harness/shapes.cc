#include "bench/harness/shapes.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder::bench {

std::span<const BlockShape> Shapes() {
  static const std::array<BlockShape, 3> shapes = {BlockShape{"64kib", 1, 64 << 10},
                                                   BlockShape{"1mib", 16, 64 << 10},
                                                   BlockShape{"8mib", 32, 256 << 10}};
  return shapes;
}

const BlockShape& ShapeNamed(std::string_view name) {
  for (const BlockShape& shape : Shapes()) {
    if (shape.name == name) return shape;
  }
  LARDER_CHECK(!"a shape of this name");
  return Shapes().front();
}

ContentSpec BenchContent() {
  ContentSpec content;
  content.model = "bench";
  return content;
}

VariantSpec BenchVariant(const BlockShape& shape) {
  VariantSpec variant;
  variant.dtype = "f16";
  variant.layout = absl::StrCat("bench/", shape.name, "/1");
  variant.block_tokens = kBlockTokens;
  variant.layers = shape.segments;
  return variant;
}

}  // namespace larder::bench
