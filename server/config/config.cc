#include "server/config/config.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "server/config/config_file.h"
#include "server/config/config_options.h"
#include "server/runtime/version.h"
#include "storage/text.h"

namespace larder {
namespace {

constexpr std::string_view kPrefix = "LARDER_";

// Returns true for LARDER_ variables that are not options and yet no error, such as those of the
// scripts in deploy/ and of the tests.
bool IsForOthers(std::string_view name) {
  return name == "LARDER_CACHE" || name == "LARDER_CONFIG" || name.starts_with("LARDER_TEST_") ||
         name.starts_with("LARDER_FUZZ_");
}

std::optional<std::string> Variable(const ConfigSources& sources, std::string_view name) {
  for (const std::string& entry : sources.environment) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

// Applies the sources, the weakest first, and collects the errors.
class Loader {
 public:
  explicit Loader(const ConfigSources& sources) : sources_(sources) {
    for (const ConfigOption& option : ConfigOptions()) {
      loaded_.settings.push_back({option.name, std::string(option.default_value), "default"});
      if (!option.default_value.empty()) {
        Assign(option, option.default_value, "the default", "default");
      }
    }
  }

  void ApplyFile();
  void ApplyEnvironment();
  void ApplyFlags();
  void ResolveSocketDir();
  void CheckTogether();

  [[nodiscard]] absl::StatusOr<LoadedConfig> Finish() && {
    if (errors_.empty()) return std::move(loaded_);
    return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
  }

 private:
  // `place` is the prefix of an error; --print-config prints `origin` after the value.
  void Apply(std::string_view name, std::string_view text, const std::string& place,
             const std::string& origin);
  void Assign(const ConfigOption& option, std::string_view text, const std::string& place,
              const std::string& origin);
  [[nodiscard]] LoadedConfig::Setting& SettingOf(std::string_view option);

  const ConfigSources& sources_;
  LoadedConfig loaded_;
  std::vector<std::string> errors_;
};

LoadedConfig::Setting& Loader::SettingOf(std::string_view option) {
  return *std::find_if(loaded_.settings.begin(), loaded_.settings.end(),
                       [&](const auto& setting) { return setting.option == option; });
}

void Loader::Assign(const ConfigOption& option, std::string_view text, const std::string& place,
                    const std::string& origin) {
  const absl::Status status = option.assign(text, sources_.uid, &loaded_.config);
  if (!status.ok()) {
    errors_.push_back(absl::StrCat(place, ": ", AbslView(option.name), " ", status.message()));
    return;
  }
  LoadedConfig::Setting& setting = SettingOf(option.name);
  setting.text = std::string(text);
  setting.origin = origin;
}

void Loader::Apply(std::string_view name, std::string_view text, const std::string& place,
                   const std::string& origin) {
  const ConfigOption* const option = FindConfigOption(name);
  if (option != nullptr) return Assign(*option, text, place, origin);
  std::string error =
      absl::StrCat(place, ": unknown option ", absl::CHexEscape(AbslView(name.substr(0, 64))));
  const std::string_view nearest = NearestConfigOption(name);
  if (!nearest.empty()) absl::StrAppend(&error, ": did you mean ", AbslView(nearest), "?");
  errors_.push_back(
      absl::StrCat(error, nearest.empty() ? ": " : " ", "larderd --help lists the options"));
}

void Loader::ApplyFile() {
  const std::string path =
      sources_.file.empty() ? Variable(sources_, "LARDER_CONFIG").value_or("") : sources_.file;
  if (path.empty()) return;
  const auto settings = ReadConfigFile(path);
  if (!settings.ok()) {
    errors_.emplace_back(settings.status().message());
    return;
  }
  std::vector<FileSetting> by_line = *settings;
  std::stable_sort(by_line.begin(), by_line.end(),
                   [](const auto& a, const auto& b) { return a.line < b.line; });
  for (const FileSetting& setting : by_line) {
    const std::string place = absl::StrCat(path, ":", setting.line);
    if (setting.error.empty()) {
      Apply(setting.key, setting.text, place, place);
    } else {
      errors_.push_back(absl::StrCat(place, ": ", absl::CHexEscape(setting.key.substr(0, 64)), " ",
                                     setting.error));
    }
  }
}

void Loader::ApplyEnvironment() {
  for (const std::string& entry : sources_.environment) {
    const size_t equals = entry.find('=');
    if (!entry.starts_with(kPrefix) || equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    if (IsForOthers(name)) continue;
    const bool upper = std::none_of(name.begin(), name.end(), absl::ascii_islower);
    // A name with lower-case letters is kept as it is, and so is reported as an unknown option.
    const std::string key = upper ? absl::AsciiStrToLower(name.substr(kPrefix.size())) : name;
    Apply(key, std::string_view(entry).substr(equals + 1), name,
          absl::StrCat("environment ", name));
  }
}

void Loader::ApplyFlags() {
  for (const auto& [name, text] : sources_.flags) {
    const ConfigOption* const option = FindConfigOption(name);
    const std::string flag = option == nullptr ? absl::StrCat("--", name) : FlagName(*option);
    Apply(name, text, flag, absl::StrCat("flag ", flag));
  }
}

void Loader::ResolveSocketDir() {
  const ConfigOption& option = *FindConfigOption("socket_dir");
  if (!loaded_.config.socket_dir.empty() || SettingOf(option.name).origin != "default") return;
  // systemd writes a list, separated by colons, if the unit has several runtime directories.
  const std::string systemd = Variable(sources_, "RUNTIME_DIRECTORY").value_or("");
  const std::string xdg = Variable(sources_, "XDG_RUNTIME_DIR").value_or("");
  if (!systemd.empty()) {
    Assign(option, systemd.substr(0, systemd.find(':')), "$RUNTIME_DIRECTORY",
           "default, $RUNTIME_DIRECTORY");
  } else if (sources_.uid == 0) {
    Assign(option, "/run/larder", "the default", "default for root");
  } else if (!xdg.empty()) {
    Assign(option, absl::StrCat(xdg, "/larder"), "$XDG_RUNTIME_DIR", "default, $XDG_RUNTIME_DIR");
  } else {
    errors_.emplace_back(
        "--socket-dir: there is no default directory for the socket files, because neither "
        "$RUNTIME_DIRECTORY nor $XDG_RUNTIME_DIR is set: write --socket-dir DIR");
  }
}

// Checks conditions that involve several options.
void Loader::CheckTogether() {
  const Config& c = loaded_.config;
  if (c.slab > c.pool) {
    errors_.push_back(absl::StrCat("slab (", SettingOf("slab").text, ") is larger than the pool (",
                                   SettingOf("pool").text, "): write a smaller slab, or 0"));
  }
}

std::string TomlString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);  // `disk` may have control characters, which are not escaped
  }
  return out + "\"";
}

}  // namespace

uint32_t Config::CheckOneIn() const {
  switch (check_host_reads) {
    case HostReadPolicy::kNever:
      return 0;
    case HostReadPolicy::kAlways:
      return 1;
    case HostReadPolicy::kSampled:
      break;
  }
  return check_one_in;
}

absl::StatusOr<LoadedConfig> LoadConfig(const ConfigSources& sources) {
  Loader loader(sources);
  loader.ApplyFile();
  loader.ApplyEnvironment();
  loader.ApplyFlags();
  loader.ResolveSocketDir();
  loader.CheckTogether();
  return std::move(loader).Finish();
}

std::string PrintConfig(const LoadedConfig& loaded) {
  std::string out = absl::StrCat("# Effective configuration of larderd ", Version(),
                                 ".  The comment after each value names its origin.\n");
  std::string_view group;
  for (const LoadedConfig::Setting& setting : loaded.settings) {
    const ConfigOption& option = *FindConfigOption(setting.option);
    if (option.group != group) {
      group = option.group;
      absl::StrAppend(&out, "\n# ", AbslView(group), "\n");
    }
    const std::string value = option.quoted ? TomlString(setting.text) : setting.text;
    absl::StrAppend(&out, AbslView(option.name), " = ", value, "  # ",
                    absl::CHexEscape(setting.origin), "\n");
  }
  return out;
}

}  // namespace larder
