// The command line: actions, flags, and a help text that fits a terminal and names every option.
#include "server/config/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_replace.h"
#include "server/config/config_options.h"
#include "server/config/help_text.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Action = CommandLine::Action;

std::string Error(const std::vector<std::string>& arguments) {
  const auto line = ParseCommandLine(arguments);
  EXPECT_FALSE(line.ok());
  return line.ok() ? "" : std::string(line.status().message());
}

TEST(CommandLineTest, FlagsInBothForms) {
  const auto line = ParseCommandLine(
      {"--pool", "8GiB", "--log-format=json", "--config", "/etc/l.toml", "--metrics-listen", ""});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->action, Action::kServe);
  EXPECT_EQ(line->config_file, "/etc/l.toml");
  EXPECT_THAT(line->flags, ElementsAre(Pair("metrics_listen", ""), Pair("pool", "8GiB"),
                                       Pair("log_format", "json")));
}

TEST(CommandLineTest, NothingAfterTheEqualsSignIsTheEmptyValue) {
  const auto line = ParseCommandLine({"--metrics-listen=", "--pool", "8GiB"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->flags, ElementsAre(Pair("metrics_listen", ""), Pair("pool", "8GiB")));
}

TEST(CommandLineTest, Actions) {
  EXPECT_EQ(ParseCommandLine({})->action, Action::kServe);
  EXPECT_EQ(ParseCommandLine({"--help"})->action, Action::kHelp);
  EXPECT_EQ(ParseCommandLine({"--version"})->action, Action::kVersion);
  EXPECT_EQ(ParseCommandLine({"--check-config", "--pool", "x"})->action, Action::kCheckConfig);
  EXPECT_EQ(ParseCommandLine({"--print-config"})->action, Action::kPrintConfig);
  EXPECT_EQ(ParseCommandLine({"--print-default-config"})->action, Action::kPrintDefaultConfig);
  EXPECT_THAT(Error({"--print-config", "--check-config"}), HasSubstr("one action"));
}

TEST(CommandLineTest, RefusesUnknownFlagsAndArguments) {
  EXPECT_THAT(Error({"--remote", "/d"}), HasSubstr("unknown option --remote: larderd --help"));
  EXPECT_THAT(Error({"--sesions-max=3"}), HasSubstr("did you mean --sessions-max?"));
  EXPECT_THAT(Error({"8GiB"}), HasSubstr("unexpected \"8GiB\""));
  EXPECT_THAT(Error({"--pool", "1GiB", "extra"}), HasSubstr("unexpected \"extra\""));
  EXPECT_THAT(Error({"-\x1b\n"}), HasSubstr("\\x1b\\n"));
  EXPECT_THAT(Error({"--pool"}), HasSubstr("--pool"));
  EXPECT_THAT(Error({"--pool", "1GiB", "--pool", "2GiB"}), HasSubstr("--pool"));
  EXPECT_THAT(Error({"--config", ""}), HasSubstr("name of a file"));
}

TEST(CommandLineTest, HelpNamesEveryOptionAndFitsATerminal) {
  const std::string help = HelpText();
  for (const ConfigOption& option : ConfigOptions()) {
    EXPECT_THAT(help, HasSubstr("  " + FlagName(option) + " " + std::string(option.value) + "\n"));
  }
  for (const char* why : {"too little memory", "another larderd has it", "a newer one wrote it"})
    EXPECT_THAT(help, HasSubstr(why));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(CommandLineTest, TheManualPageNamesEveryOption) {
  EXPECT_EQ(ParseCommandLine({"--print-man-page"})->action, Action::kPrintManPage);
  const std::string page = ManPage();
  for (const ConfigOption& option : ConfigOptions()) {
    EXPECT_THAT(page, HasSubstr(absl::StrReplaceAll(FlagName(option), {{"-", "\\-"}})));
    EXPECT_THAT(page, HasSubstr(VariableName(option)));
  }
}

}  // namespace
}  // namespace larder
