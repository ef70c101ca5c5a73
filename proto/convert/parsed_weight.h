// Estimates how much memory a serialized message takes once it is parsed, without parsing it: two
// bytes may be an empty message that becomes an object of a hundred bytes, so the length of what an
// untrusted peer sends says little about its cost.
//
// The estimate is rough: for the messages of parsed_weight_test.cc it is between half and three
// times what protobuf takes.  Malformed input is left to the parser.
// Ownership: none.  Thread-safety: pure functions, except that one reads from its stream.
// Cost: each field, and each byte of packed varints, is looked at at most once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

namespace larder {

// Returns the estimate, in bytes, for a serialized message of this type.  Stops as soon as the
// estimate exceeds `most`, and then returns more than `most`.
[[nodiscard]] uint64_t ParsedWeight(const google::protobuf::Descriptor& type,
                                    std::span<const std::byte> serialized, uint64_t most);
// Returns the estimate, in bytes, for the message of this type that the stream holds; reads the
// stream.  Stops as soon as the estimate exceeds `most`, and then returns more than `most`.
[[nodiscard]] uint64_t ParsedWeight(const google::protobuf::Descriptor& type,
                                    google::protobuf::io::ZeroCopyInputStream& serialized,
                                    uint64_t most);

// Returns how many bytes of memory a message of `length` bytes may take at most once it is parsed:
// many times its length if it is short, little more than twice its length if it has many MiB.
[[nodiscard]] uint64_t ParsedWeightMax(uint64_t length);

}  // namespace larder
