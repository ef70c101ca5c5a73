#include "server/config/config_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;

absl::Status CannotRead(const std::string& path, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read the configuration: ", why));
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  // O_NONBLOCK: a FIFO must not block the daemon.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return CannotRead(path, std::strerror(errno));
  std::string bytes(kFileBytesMax + 1, '\0');
  size_t size = 0;
  ssize_t n = 0;
  while (size < bytes.size()) {
    n = read(fd, bytes.data() + size, bytes.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<size_t>(n);
  }
  const int error = errno;
  close(fd);
  if (n < 0) return CannotRead(path, std::strerror(error));
  if (size > kFileBytesMax) return CannotRead(path, "it is larger than 1 MiB");
  bytes.resize(size);
  return bytes;
}

// Writes a string, boolean or number as the text of an option.  Returns false for other values.
bool TextOf(const toml::node& node, std::string* text) {
  if (const auto* s = node.as_string()) {
    *text = s->get();
  } else if (const auto* b = node.as_boolean()) {
    *text = b->get() ? "true" : "false";
  } else if (const auto* i = node.as_integer()) {
    const bool octal = (i->flags() & toml::value_flags::format_as_octal) != toml::value_flags::none;
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, i->get(), octal ? 8 : 10).ptr;
    *text = absl::StrCat(octal ? "0o" : "", absl::string_view(digits, end - digits));
  } else if (const auto* f = node.as_floating_point()) {
    char digits[40];
    const auto end = std::to_chars(digits, digits + sizeof digits, f->get()).ptr;
    text->assign(digits, end);
  } else {
    return false;
  }
  return true;
}

// Writes the elements of a list to `text`, separated by commas.  Returns false if TextOf does so
// for an element.
bool TextOfArray(const toml::array& array, std::string* text) {
  for (const toml::node& element : array) {
    std::string part;
    if (!TextOf(element, &part)) return false;
    absl::StrAppend(text, text->empty() ? "" : ",", part);
  }
  return true;
}

FileSetting Setting(std::string_view key, uint32_t line, const toml::node& node) {
  FileSetting setting{.key = std::string(key), .text = {}, .error = {}, .line = line};
  const auto* array = node.as_array();
  if (node.is_table() || node.is_array_of_tables()) {
    setting.error = "is a section, and this file has none: write all options at the top level";
  } else if (array != nullptr ? !TextOfArray(*array, &setting.text)
                              : !TextOf(node, &setting.text)) {
    setting.error =
        "is of a kind that no option has: write a string, number, true, false or a list";
  }
  return setting;
}

}  // namespace

absl::StatusOr<std::vector<FileSetting>> ReadConfigFile(const std::string& path) {
  LARDER_ASSIGN_OR_RETURN(std::string text, ReadAll(path));
  toml::parse_result parsed = toml::parse(std::string_view(text), path);
  if (!parsed) {
    const std::string_view why = parsed.error().description();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", parsed.error().source().begin.line, ": ", AbslView(why)));
  }
  std::vector<FileSetting> settings;
  for (const auto& [key, node] : parsed.table()) {
    settings.push_back(Setting(key.str(), key.source().begin.line, node));
  }
  return settings;
}

}  // namespace larder
