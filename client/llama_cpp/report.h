// What larder-llama prints: text for people, and one line of JSON for programs.
//
// Numbers in JSON are not rounded.  Thread-safety: pure functions.
#pragma once

#include <span>
#include <string>

#include "client/llama_cpp/bench_lengths.h"
#include "client/llama_cpp/run.h"

namespace larder::llama {

[[nodiscard]] std::string RunAsText(const RunResult& result);
[[nodiscard]] std::string RunAsJson(const RunResult& result);
[[nodiscard]] std::string BenchAsText(std::span<const LengthResult> results);
[[nodiscard]] std::string BenchAsJson(std::span<const LengthResult> results);

}  // namespace larder::llama
