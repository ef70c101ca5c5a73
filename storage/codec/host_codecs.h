// Codecs that run on the CPU.
//
// Lossless ("planes"): the bytes of a segment apart by their place in the number that they are part
// of, each plane by zstd where that makes it shorter.  Of 16-bit floats the plane of signs and
// exponents shrinks, that of low mantissas does not; docs/format.md has the form, and
// bench/codecs.cc what it was chosen from.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "storage/codec/block_codec.h"

namespace larder {

// nullptr: this daemon has none of that kind.  kIdentity has one, too: it encodes nothing.
[[nodiscard]] std::unique_ptr<BlockCodec> MakeHostCodec(Codec codec);
// All that there are, for help texts and tests.
[[nodiscard]] std::span<const Codec> HostCodecs();

}  // namespace larder
