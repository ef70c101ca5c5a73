// The parts of a byte fuzz of a decoder.  Its entry point is libFuzzer's, so that libFuzzer, AFL
// and the driver here (byte_fuzz_main.cc) all run the same file.
//
// A fuzz aborts (LARDER_CHECK) if a rule is broken.  Refusing the input is not a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace larder {

// Inputs to start from; at least one of them decodes.
[[nodiscard]] std::vector<std::string> FuzzSeeds();

}  // namespace larder
