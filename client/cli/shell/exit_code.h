// How larderctl ends.  --help and the manual print this table.
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
    {1, "not all of it: some blocks are missing, full, kept or damaged, or nothing was found"},
    {2, "a wrong command line, or it was not confirmed"},
    {3, "no daemon, or it cannot now: it starts, drains, has too much to do, or its disk fails"},
    {4, "no rights: the socket file, the tenant, or a file"},
    {5, "refused or failed"},
    {6, "the deadline passed (--timeout)"},
    {130, "interrupted (Ctrl-C); of SIGTERM 143, of a reader that has gone 141"},
};

// Of a call, or of a file.  REQUIRES: not OK.
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
