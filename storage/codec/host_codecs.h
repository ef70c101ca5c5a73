// Codecs that run on the CPU.
//
// kLossless splits a segment into byte planes: plane i has byte i of every number.  A long plane is
// divided into two pieces.  zstd encodes each piece that becomes shorter by it; the others are
// stored as they are.  In 16-bit floats the plane of signs and exponents shrinks, the plane of low
// mantissa bits does not.  docs/format.md specifies the bytes, and bench/codecs.cc compares this
// codec with the alternatives that were tried.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "storage/codec/block_codec.h"

namespace larder {

// Makes a codec of this kind.  Returns nullptr if this daemon has none.  The codec for kIdentity
// never encodes: its Encode always returns nullopt.
[[nodiscard]] std::unique_ptr<BlockCodec> MakeHostCodec(Codec codec);
// All kinds that MakeHostCodec can make, for help texts and tests.
[[nodiscard]] std::span<const Codec> HostCodecs();

}  // namespace larder
