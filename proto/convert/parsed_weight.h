// Estimates how much memory a serialized message takes once it is parsed, without parsing it: an
// empty message of two bytes becomes an object of a hundred bytes, so the length of what an
// untrusted peer sends says little about its cost.
//
// The estimate is an upper bound within a factor of about two.  It weighs messages by their fields,
// and packed numbers by their count.  It leaves malformed input to the parser.
// Ownership: none.  Thread-safety: pure functions, except that one reads from its stream.
// Cost: it looks once at each field, and at each byte of packed numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

namespace larder {

// Stops as soon as the weight exceeds `most`, and then returns more than `most`.
[[nodiscard]] uint64_t ParsedWeight(const google::protobuf::Descriptor& type,
                                    std::span<const std::byte> serialized, uint64_t most);
// The weight of what the stream holds, which it reads once.
[[nodiscard]] uint64_t ParsedWeight(const google::protobuf::Descriptor& type,
                                    google::protobuf::io::ZeroCopyInputStream& serialized,
                                    uint64_t most);

// How much memory a message of `length` bytes is allowed to take once it is parsed.  Blocks of 16
// short token ids take about 6 times their length; a message of a few bytes takes more, because it
// becomes an object; long messages are mostly digests and token ids, which take little more than
// their length.
[[nodiscard]] uint64_t ParsedWeightMax(uint64_t length);

}  // namespace larder
