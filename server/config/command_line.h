// The command line of larderd: the action, and the flags, which are one of the sources of the
// configuration.
//
// Every option of config_options is a flag with one value.  LoadConfig interprets the values.
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

// Parses `arguments`, which do not include the program's name.  Returns InvalidArgument if that
// fails; LoadConfig checks the options' values.  --help and --version win over other actions.
[[nodiscard]] absl::StatusOr<CommandLine> ParseCommandLine(
    const std::vector<std::string>& arguments);

}  // namespace larder
