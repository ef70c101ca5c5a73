// One deadline for the calls of a batch that is moved part by part.
#pragma once

#include "absl/status/statusor.h"
#include "client/client.h"
#include "storage/time_left.h"

namespace larder {

// Returns the options with the time that is left until `until`.  Returns DeadlineExceeded if none
// is left.
[[nodiscard]] inline absl::StatusOr<CallOptions> Until(CallOptions options, TimePoint until) {
  options.deadline = MillisecondsLeft(until);
  if (options.deadline.count() <= 0) return absl::DeadlineExceededError("the deadline has passed");
  return options;
}

}  // namespace larder
