// Codecs that run on the CPU.
//
// kLossless splits a segment into byte planes: plane i has byte i of every number in the segment.
// A plane of 4 KiB or more is divided into two pieces.  A piece is encoded by zstd, or stored as it
// is if zstd does not make it shorter.  docs/format.md specifies the bytes, and bench/codecs.cc
// compares this codec with alternatives.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "storage/codec/block_codec.h"

namespace larder {

// Makes a codec of this kind.  Returns nullptr for any kind except kIdentity and kLossless.  The
// codec for kIdentity never encodes: its Encode always returns nullopt.
[[nodiscard]] std::unique_ptr<BlockCodec> MakeHostCodec(Codec codec);
// Returns the kinds for which MakeHostCodec makes a codec.
[[nodiscard]] std::span<const Codec> HostCodecs();

}  // namespace larder
