// Reads a configuration file (TOML) into texts with their lines; knows no options.
//
// Keys stand at the top level only: a section is an error, since there is none to put an option in.
// Ownership: values.  Thread-safety: pure but for the file.  Limits: files up to 1 MiB.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace larder {

struct FileSetting {
  std::string key;
  std::string text;   // as an option is written: a string's content, "true", "0.25", "self,1001"
  std::string error;  // not empty: the value is of no kind that an option could have
  uint32_t line = 0;
};

// InvalidArgument: no such file, unreadable, not TOML; with FILE:LINE where there is a line.
[[nodiscard]] absl::StatusOr<std::vector<FileSetting>> ReadConfigFile(const std::string& path);

}  // namespace larder
