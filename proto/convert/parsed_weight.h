// About how much memory a serialized message takes once it is parsed, found out without parsing it:
// an empty message of two bytes becomes an object of a hundred, so the length of what a stranger
// sends says little of what it costs.
//
// An upper bound within a factor of about two: of messages by what is in them, of numbers by their
// count.  What is malformed is left to the parser.
// Ownership: none.  Thread-safety: pure, but for the stream that it reads.  Cost: one look at each
// field, and at each byte of packed numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

namespace larder {

// Stops, and answers more than `most`, as soon as it is more.
[[nodiscard]] uint64_t ParsedWeight(const google::protobuf::Descriptor& type,
                                    std::span<const std::byte> serialized, uint64_t most);
// Of what the stream holds, which it reads once.
[[nodiscard]] uint64_t ParsedWeight(const google::protobuf::Descriptor& type,
                                    google::protobuf::io::ZeroCopyInputStream& serialized,
                                    uint64_t most);

// How much a message of `length` bytes may take once it is parsed.  Blocks of 16 short token ids
// take about 6 times their length, a message of a few bytes more, as it is an object; long messages
// are mostly digests and token ids, which take little more than their length.
[[nodiscard]] uint64_t ParsedWeightMax(uint64_t length);

}  // namespace larder
