// The child's side of WorkerGroup: which worker this process is, and the loop that answers
// commands.
//
// Thread-safety: none.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder::bench {

struct WorkerArguments {
  size_t index = 0;
  std::vector<std::string> rest;  // as WorkerGroup::Start got them
};
// Returns nullopt if this process is no worker.
[[nodiscard]] std::optional<WorkerArguments> ParseWorker(int argc, char** argv);

// Prints "ready", then answers each command (numbers with blanks between) until stdin ends.
// Returns the exit code; the first error, printed on stderr, ends the loop.
int ServeWorker(
    const absl::Status& setup,
    const std::function<absl::StatusOr<std::string>(const std::vector<double>& command)>& handle);

void SleepUntil(double seconds);  // by SecondsNow(), which all processes of a host share

}  // namespace larder::bench
