// The command line of larderd: what to do, and the flags among the configuration's sources.
//
// Every option of config_options is a flag with one value.  Parses only; what a value means is
// LoadConfig's business.
// Ownership: values.  Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace larder {

struct CommandLine {
  enum class Action : uint8_t {
    kServe,
    kHelp,
    kVersion,
    kCheckConfig,
    kPrintConfig,
    kPrintDefaultConfig,
    kPrintMetricsReference,
    kPrintManPage,
  };
  Action action = Action::kServe;
  std::string config_file;                                 // --config
  std::vector<std::pair<std::string, std::string>> flags;  // for ConfigSources
};

// `arguments` without the program's name.  InvalidArgument with what to do: an unknown flag, one
// without its value, one twice, or something that is no flag.
[[nodiscard]] absl::StatusOr<CommandLine> ParseCommandLine(
    const std::vector<std::string>& arguments);

}  // namespace larder
