// Codecs that run on the CPU.
//
// kLossless splits a segment into byte planes: plane i holds byte i of every number.  zstd encodes
// each plane that it makes shorter.  In 16-bit floats the plane of signs and exponents shrinks, the
// plane of low mantissas does not.  docs/format.md specifies the bytes, and bench/codecs.cc
// compares this codec with the alternatives that were tried.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "storage/codec/block_codec.h"

namespace larder {

// Returns nullptr if this daemon has no codec of that kind.  kIdentity has one too; its Encode
// always returns nullopt.
[[nodiscard]] std::unique_ptr<BlockCodec> MakeHostCodec(Codec codec);
// All kinds that MakeHostCodec can make, for help texts and tests.
[[nodiscard]] std::span<const Codec> HostCodecs();

}  // namespace larder
