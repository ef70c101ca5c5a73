// The table of options, which declares each option once.
//
// The flag, the environment variable and the file key of each option, and its part of --help, of
// larderd(8), of the default configuration file and of --print-config, are all made from this
// table.  The option `data_socket_mode`, for example, is the flag --data-socket-mode, the variable
// LARDER_DATA_SOCKET_MODE and the key data_socket_mode.
//
// Thread-safety: the table is constant, so any thread may read it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/config/config.h"

namespace larder {

struct ConfigOption {
  std::string_view name;
  std::string_view group;          // heading in --help
  std::string_view value;          // the kind of value that --help names: "SIZE"
  std::string_view default_value;  // as text
  bool quoted;                     // true if TOML writes the value as a string
  std::string_view help;           // full sentences
  // Parses `text` into the option's field of `config`; `self` is the uid of the daemon.  Returns an
  // error, whose message says what is wrong, if `text` is not valid; the field may have changed all
  // the same.
  absl::Status (*assign)(std::string_view text, uid_t self, Config* config);
};

[[nodiscard]] std::span<const ConfigOption> ConfigOptions();
// Returns nullptr if there is no such option.
[[nodiscard]] const ConfigOption* FindConfigOption(std::string_view name);
// Returns the name of an option that is much like `name`; empty if there is none.
[[nodiscard]] std::string_view NearestConfigOption(std::string_view name);

[[nodiscard]] std::string FlagName(const ConfigOption& option);      // "--data-socket-mode"
[[nodiscard]] std::string VariableName(const ConfigOption& option);  // "LARDER_DATA_SOCKET_MODE"

}  // namespace larder
