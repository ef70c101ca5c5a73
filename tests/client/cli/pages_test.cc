// Manual pages and completions: they come from the built programs, are complete and well-formed.
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace larder {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Outcome {
  int code = -1;
  std::string out;
};

// Runs a command in bash.  Returns its exit code and both output streams.
Outcome Bash(const std::string& command) {
  Outcome outcome;
  const std::string quoted = absl::StrReplaceAll(command, {{"'", "'\\''"}});
  FILE* const pipe = popen(("bash --norc -c '" + quoted + "' 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    outcome.out.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

std::string Page(const std::string& name) {
  std::ifstream file(LARDER_PAGES "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> Verbs() {
  std::vector<std::string> verbs;
  const std::string help = Bash(LARDERCTL " --help").out;
  const size_t begin = help.find("\nVerbs\n") + 7;
  for (const absl::string_view line :
       absl::StrSplit(help.substr(begin, help.find("\n\n", begin) - begin), '\n'))
    verbs.emplace_back(*absl::StrSplit(line, ' ', absl::SkipEmpty()).begin());
  return verbs;
}

// Returns the options of a verb, "--owner" for example, as --help lists them.
std::vector<std::string> OptionsOf(const std::string& verb) {
  std::vector<std::string> options;
  const std::string help = Bash(LARDERCTL " " + verb + " --help").out;
  const std::vector<std::string> lines = absl::StrSplit(help, '\n');
  for (const std::string& line : lines) {
    const size_t at = line.find("--");
    if (!line.starts_with("  -") || at == std::string::npos) continue;
    options.push_back(line.substr(at, line.find_first_of(" ,", at) - at));
  }
  return options;
}

TEST(Pages, AreAsPrintedByThePrograms) {
  EXPECT_EQ(Page("larderctl.1"), Bash(LARDERCTL " --print-man-page").out);
  EXPECT_EQ(Page("larderd.8"), Bash(LARDERD " --print-man-page").out);
  EXPECT_EQ(Page("larderctl"), Bash(LARDERCTL " completion bash").out);
  EXPECT_EQ(Page("_larderctl"), Bash(LARDERCTL " completion zsh").out);
  EXPECT_EQ(Page("larderctl.fish"), Bash(LARDERCTL " completion fish").out);
}

TEST(Pages, ManReportsNoWarnings) {
  if (Bash("command -v man").code != 0)
    GTEST_SKIP() << "needs man; deploy/install-deps.sh installs it";
  for (const std::string page : {"larderctl.1", "larderd.8"}) {
    const Outcome read = Bash("MANWIDTH=80 LC_ALL=C.UTF-8 man --warnings -l " LARDER_PAGES "/" +
                              page + " >/dev/null");
    EXPECT_EQ(read.code, 0) << page;
    EXPECT_THAT(read.out, IsEmpty()) << page;
    const Outcome name = Bash("lexgrog " LARDER_PAGES "/" + page);
    EXPECT_EQ(name.code, 0) << name.out;
  }
}

TEST(Pages, HaveEveryVerbAndOption) {
  const std::string page = absl::StrReplaceAll(Page("larderctl.1"), {{"\\-", "-"}});
  const std::vector<std::string> verbs = Verbs();
  ASSERT_GE(verbs.size(), 16u);
  size_t options = 0;
  for (const std::string& verb : verbs) {
    EXPECT_THAT(page, HasSubstr("\n.SS larderctl " + verb + " [OPTION...]"));
    for (const char* const name : {"larderctl", "_larderctl", "larderctl.fish"})
      EXPECT_THAT(Page(name), HasSubstr(verb)) << name;
    for (const std::string& option : OptionsOf(verb)) {
      ++options;
      EXPECT_THAT(page, HasSubstr(option)) << verb;
      EXPECT_THAT(Page("larderctl"), HasSubstr(option)) << verb;
      EXPECT_THAT(Page("_larderctl"), HasSubstr("*" + option + "[")) << verb;
      EXPECT_THAT(Page("larderctl.fish"), HasSubstr("-l " + option.substr(2))) << verb;
    }
  }
  EXPECT_GE(options, 50u);
  for (const char* const code : {"0", "1", "2", "3", "4", "5", "6", "130"})
    EXPECT_THAT(page, HasSubstr(std::string("\n\\fB") + code + "\\fR\n"));
}

// Returns what bash offers after these words, of which the last is incomplete.
std::string Offered(const std::string& words) {
  return Bash("source " LARDER_PAGES "/larderctl; COMP_WORDS=(" + words +
              "); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _larderctl; echo \"${COMPREPLY[*]}\"")
      .out;
}

TEST(Completion, BashOffersVerbsOptionsAndValues) {
  EXPECT_EQ(Offered("larderctl sta"), "status\n");
  EXPECT_EQ(Offered("larderctl pin --ti"), "--tier --timeout\n");
  EXPECT_EQ(Offered("larderctl pin --tier ''"), "host disk device\n");
  EXPECT_EQ(Offered("larderctl -o json st"), "status\n");
  EXPECT_EQ(Offered("larderctl status -o t"), "table\n");
  EXPECT_EQ(Offered("larderctl completion z"), "zsh\n");
  EXPECT_EQ(Offered("larderctl pin --owner ''"), "\n");
  EXPECT_EQ(Offered("larderctl dump " LARDER_PAGES "/larderd"), LARDER_PAGES "/larderd.8\n");
}

TEST(Completion, OtherShellsParseTheirFiles) {
  if (Bash("command -v zsh").code == 0) {
    const Outcome zsh = Bash("zsh -n " LARDER_PAGES "/_larderctl");
    EXPECT_EQ(zsh.code, 0) << zsh.out;
  }
  if (Bash("command -v fish").code == 0) {
    const Outcome fish = Bash("fish -n " LARDER_PAGES "/larderctl.fish");
    EXPECT_EQ(fish.code, 0) << fish.out;
    EXPECT_THAT(Bash("fish -c \"source " LARDER_PAGES "/larderctl.fish; "
                     "complete -C 'larderctl pin --ti'\"")
                    .out,
                HasSubstr("--tier"));
  }
}

}  // namespace
}  // namespace larder
