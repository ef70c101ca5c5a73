// The exit codes of larderctl.  --help and the manual page print the table kExitCodes.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace larder::cli {

enum class ExitCode : int {
  kOk = 0,
  kIncomplete = 1,
  kUsage = 2,
  kUnavailable = 3,
  kDenied = 4,
  kFailed = 5,
  kDeadline = 6,
  kInterrupted = 130,
};

struct ExitCodeText {
  int code;
  std::string_view text;
};
inline constexpr ExitCodeText kExitCodes[] = {
    {0, "done"},
    {1,
     "incomplete: some blocks are missing, did not fit, were kept or are damaged, or nothing was "
     "found"},
    {2, "the command line is wrong, or the user did not confirm"},
    {3,
     "no daemon answers, or it cannot serve the call now: it is starting, draining or overloaded, "
     "or its disk fails"},
    {4, "no permission for the socket file, the tenant or a file"},
    {5, "the daemon refused the call, or the call failed"},
    {6, "the deadline (--timeout) passed"},
    {130,
     "interrupted by Ctrl-C; 143 after SIGTERM, 141 when the reader of standard output has gone"},
};

// Returns the exit code for the error of a call or of a file operation.  REQUIRES: `status` is not
// OK.
[[nodiscard]] inline ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:  // a file
      return ExitCode::kUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ExitCode::kDenied;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kDeadline;
    default:
      return ExitCode::kFailed;
  }
}

}  // namespace larder::cli
