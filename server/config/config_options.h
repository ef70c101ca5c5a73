// The table of options: everything that can be configured, each declared once.
//
// Flags, environment variables, file keys, --help and --print-config are all made from it.  An
// option `data_socket_mode` is the flag --data-socket-mode, the variable LARDER_DATA_SOCKET_MODE
// and the key data_socket_mode.
//
// Thread-safety: constant data.
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
  std::string_view value;          // what to write, in --help: "SIZE"
  std::string_view default_value;  // as text; parses, except the empty default of socket_dir
  bool quoted;                     // TOML writes it as a string
  std::string_view help;           // sentences
  // Reads `text` into the option's field.  InvalidArgument says what to write instead.
  absl::Status (*assign)(std::string_view text, uid_t self, Config* config);
};

[[nodiscard]] std::span<const ConfigOption> ConfigOptions();
// nullptr: no such option.
[[nodiscard]] const ConfigOption* FindConfigOption(std::string_view name);
// The option that `name` is probably a slip of; empty: none is near.
[[nodiscard]] std::string_view NearestConfigOption(std::string_view name);

[[nodiscard]] std::string FlagName(const ConfigOption& option);      // "--data-socket-mode"
[[nodiscard]] std::string VariableName(const ConfigOption& option);  // "LARDER_DATA_SOCKET_MODE"

}  // namespace larder
