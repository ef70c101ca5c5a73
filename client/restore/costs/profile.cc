// toml++ only parses the file.  FormatProfile writes it without toml++, so that the file has a
// fixed order and comments for people.
#include "client/restore/costs/profile.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "absl/strings/str_cat.h"
#include "client/restore/costs/layers.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr std::uintmax_t kFileBytesMax = 1 << 20;

absl::Status Wrong(const std::string& path, unsigned line, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", line, ": ", what,
                   "; correct it, or delete the file and have the engine measure a new profile"));
}

// Reads the keys of one table, and remembers the first error.
class Table {
 public:
  Table(const toml::table& table, std::string path) : table_(table), path_(std::move(path)) {}

  void Number(const char* key, double min, double max, bool needed, double* out) {
    const toml::node* node = Find(key, needed);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!value || !(*value >= min && *value <= max)) {
      return Fail(*node, absl::StrCat(key, " must be a number from ", min, " to ", max));
    }
    *out = *value;
  }
  void Text(const char* key, bool needed, std::string* out) {
    const toml::node* node = Find(key, needed);
    if (node == nullptr) return;
    const auto value = node->value<std::string>();
    if (!value || value->size() > 256)
      return Fail(*node, absl::StrCat(key, " must be a short text, of at most 256 bytes"));
    *out = *value;
  }
  void Shares(const char* key, size_t count, std::vector<double>* out) {
    const toml::node* node = Find(key, false);
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr || array->size() != count) {
      return Fail(*node, absl::StrCat(key, " must have a number for each of ", count, " layers"));
    }
    for (const toml::node& entry : *array) {
      const auto value = entry.value<double>();
      if (!value || !(*value > 0 && *value < 1e6)) return Fail(entry, "a share must be above 0");
      out->push_back(*value);
    }
  }
  // Returns the first error, or OK.  A key of the table that no call has asked for is an error,
  // too.
  absl::Status Finish() {
    for (const auto& [key, node] : table_) {
      if (known_.count(std::string(key.str())) == 0) {
        Fail(node, absl::StrCat("unknown key '", std::string(key.str()), "'"));
      }
    }
    return status_;
  }

 private:
  const toml::node* Find(const char* key, bool needed) {
    known_.insert(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr && needed) Fail(table_, absl::StrCat(key, " is missing"));
    return node;
  }
  void Fail(const toml::node& node, const std::string& what) {
    if (status_.ok()) status_ = Wrong(path_, node.source().begin.line, what);
  }
  const toml::table& table_;
  std::string path_;
  std::set<std::string> known_;
  absl::Status status_;
};

absl::Status ReadEngine(const toml::table& root, const std::string& path, Profile* profile) {
  const toml::table* table = root["engine"].as_table();
  if (table == nullptr) return Wrong(path, 1, "there is no [engine]");
  double layers = 0, crossover = 0;
  Table keys(*table, path);
  keys.Text("model", false, &profile->model);
  keys.Number("layers", 1, kStageLayersMax, true, &layers);
  keys.Number("crossover_tokens", 0, 1e9, false, &crossover);
  keys.Number("doubt", 0, 10, false, &profile->doubt);
  profile->layers = static_cast<uint16_t>(layers);
  profile->crossover_tokens = static_cast<uint32_t>(crossover);
  return keys.Finish();
}

absl::Status ReadCompute(const toml::table& root, const std::string& path, Profile* profile) {
  const toml::table* table = root["compute"].as_table();
  if (table == nullptr) return Wrong(path, 1, "there is no [compute]");
  Table keys(*table, path);
  keys.Number("fixed_s", 0, 1e6, true, &profile->compute.fixed_s);
  keys.Number("linear_s", 0, 1e6, true, &profile->compute.linear_s);
  keys.Number("quadratic_s", 0, 1e6, true, &profile->compute.quadratic_s);
  keys.Shares("layer_shares", profile->layers, &profile->layer_shares);
  LARDER_RETURN_IF_ERROR(keys.Finish());
  if (profile->compute.Seconds({0, 1}) > 0) return absl::OkStatus();
  return Wrong(path, table->source().begin.line, "computing must cost more than 0 seconds");
}

absl::Status ReadChannels(const toml::table& root, const std::string& path, Profile* profile) {
  const toml::node* node = root.get("channel");
  if (node == nullptr) return absl::OkStatus();
  const toml::array* array = node->as_array();
  if (array == nullptr || array->size() > kChannelsMax) {
    return Wrong(path, node->source().begin.line,
                 "channel must be a list of at most 256 [[channel]] tables");
  }
  for (const toml::node& entry : *array) {
    const toml::table* table = entry.as_table();
    if (table == nullptr)
      return Wrong(path, entry.source().begin.line, "a channel must be a [[channel]] table");
    ChannelCost channel;
    Table keys(*table, path);
    keys.Text("name", true, &channel.name);
    keys.Number("bytes_per_s", 1, 1e15, true, &channel.bytes_per_s);
    LARDER_RETURN_IF_ERROR(keys.Finish());
    profile->channels.push_back(std::move(channel));
  }
  return absl::OkStatus();
}

absl::Status CheckRoot(const toml::table& root, const std::string& path) {
  for (const auto& [key, node] : root) {
    if (key != "engine" && key != "compute" && key != "channel") {
      return Wrong(path, node.source().begin.line,
                   absl::StrCat("unknown key '", std::string(key.str()), "'"));
    }
  }
  return absl::OkStatus();
}

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// Returns `text` as a basic string of TOML, without control characters.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
  }
  return out + '"';
}

}  // namespace

absl::StatusOr<Profile> ParseProfile(std::string_view text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    return Wrong(path, parsed.error().source().begin.line,
                 std::string(parsed.error().description()));
  }
  const toml::table& root = parsed.table();
  Profile profile;
  for (const auto read : {ReadEngine, ReadCompute, ReadChannels}) {
    LARDER_RETURN_IF_ERROR(read(root, path, &profile));
  }
  LARDER_RETURN_IF_ERROR(CheckRoot(root, path));
  return profile;
}

std::string FormatProfile(const Profile& profile) {
  const ComputeCost& compute = profile.compute;
  std::string out = "# What computing and loading cost here.  Seconds, bytes, tokens.\n[engine]\n";
  absl::StrAppend(&out, "model = ", Quoted(profile.model), "\nlayers = ", profile.layers, "\n");
  absl::StrAppend(&out, "crossover_tokens = ", profile.crossover_tokens, "\n");
  absl::StrAppend(&out, "doubt = ", Number(profile.doubt), "  # relative\n\n[compute]\n");
  absl::StrAppend(&out, "fixed_s = ", Number(compute.fixed_s), "  # per step\n");
  absl::StrAppend(&out, "linear_s = ", Number(compute.linear_s), "  # per token\n");
  absl::StrAppend(&out, "quadratic_s = ", Number(compute.quadratic_s),
                  "  # per token and token before it\n");
  if (!profile.layer_shares.empty()) {
    absl::StrAppend(&out, "layer_shares = [");
    for (const double share : profile.layer_shares) absl::StrAppend(&out, Number(share), ", ");
    absl::StrAppend(&out, "]\n");
  }
  for (const ChannelCost& channel : profile.channels) {
    absl::StrAppend(&out, "\n[[channel]]\nname = ", Quoted(channel.name),
                    "\nbytes_per_s = ", Number(channel.bytes_per_s), "\n");
  }
  return out;
}

absl::StatusOr<Profile> ReadProfile(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", error.message(), "; have the engine measure a profile first"));
  }
  if (bytes > kFileBytesMax) return Wrong(path, 1, "the file is larger than 1 MiB");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  return ParseProfile(text.str(), path);
}

absl::Status WriteProfile(const Profile& profile, const std::string& path) {
  const std::string beside = path + ".new";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << FormatProfile(profile);
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(beside, path, error);
  if (file && !error) return absl::OkStatus();
  std::filesystem::remove(beside, error);
  return absl::UnavailableError(
      absl::StrCat(path, ": cannot be written; check that its folder exists and has free space"));
}

}  // namespace larder
