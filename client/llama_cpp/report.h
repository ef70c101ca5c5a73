// What larder-llama prints: for people, and as one line of JSON for programs.
//
// Seconds, bytes and tokens, unrounded in JSON.  Thread-safety: pure functions.
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
