#include "client/cli/pages/verb_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/pages/option_values.h"
#include "storage/text.h"

namespace larder::cli {

void VerbOptions::AddText(const std::string& name, std::string* to, const std::string& value,
                          const std::string& help) {
  CLI::Option* const option = app_.add_option(name, *to, help)->type_name(value);
  if (!to->empty()) option->capture_default_str();
}

void VerbOptions::AddTexts(const std::string& name, std::vector<std::string>* to,
                           const std::string& value, const std::string& help) {
  app_.add_option(name, *to, help)
      ->type_name(value)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void VerbOptions::AddWords(const std::string& name, std::vector<std::string>* to,
                           const std::string& help) {
  app_.add_option(name, *to, help);
}

void VerbOptions::AddWord(const std::string& name, std::string* to,
                          const std::vector<std::string>& words, const std::string& help) {
  const std::string type = absl::StrJoin(words, "|");
  const auto check = [words, type](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return absl::StrCat("\"", Printable(text), "\" is not one of ", type);
  };
  CLI::Option* const option =
      app_.add_option(name, *to, help)->type_name(type)->check(CLI::Validator(check, ""));
  if (!to->empty()) option->capture_default_str();
}

void VerbOptions::AddNumber(const std::string& name, uint64_t* to, const std::string& value,
                            const std::string& help) {
  CLI::Option* const option = app_.add_option(name, *to, help)->type_name(value);
  if (*to != 0) option->capture_default_str();
}

void VerbOptions::AddDuration(const std::string& name, std::chrono::milliseconds* to,
                              const std::string& help) {
  app_.add_option_function<std::string>(
          name, [to](const std::string& text) { *to = ParseDuration(text).value_or(*to); }, help)
      ->type_name("DURATION")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::string(ParseDuration(text).status().message());
          },
          ""));
}

void VerbOptions::AddBytes(const std::string& name, uint64_t* to, const std::string& help) {
  app_.add_option_function<std::string>(
          name, [to](const std::string& text) { *to = ParseBytes(text).value_or(*to); }, help)
      ->type_name("SIZE")
      ->check(CLI::Validator(
          [](const std::string& text) { return std::string(ParseBytes(text).status().message()); },
          ""));
}

void VerbOptions::AddFlag(const std::string& name, bool* to, const std::string& help) {
  app_.add_flag(name, *to, help);
}

}  // namespace larder::cli
