// Reads a configuration file (TOML) into keys and texts with their line numbers.  It does not know
// the options.
//
// All keys are at the top level: a section is an error, because no option belongs to one.
// Ownership: values.  Thread-safety: any thread may call ReadConfigFile.
// Limits: files up to 1 MiB.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace larder {

struct FileSetting {
  std::string key;
  std::string text;   // the value as text: a string's content, "true", "0.25", "self,1001"
  std::string error;  // not empty if no option could have this kind of value
  uint32_t line = 0;
};

// Returns InvalidArgument, with a message that begins with `path`, if the file cannot be read, is
// too large or is not TOML.
[[nodiscard]] absl::StatusOr<std::vector<FileSetting>> ReadConfigFile(const std::string& path);

}  // namespace larder
