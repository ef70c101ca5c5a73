// What a byte fuzz of a decoder consists of.  Its entry is libFuzzer's, so that libFuzzer, AFL and
// the driver here (byte_fuzz_main.cc) all run the same file.
//
// A fuzz aborts (LARDER_CHECK) when a rule is broken; to refuse the input is not a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace larder {

// Inputs to start from: at least one that decodes.
[[nodiscard]] std::vector<std::string> FuzzSeeds();

}  // namespace larder
