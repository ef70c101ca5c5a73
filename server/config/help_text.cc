#include "server/config/help_text.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/config_options.h"
#include "server/runtime/version.h"
#include "storage/roff.h"
#include "storage/text.h"

namespace larder {
namespace {

constexpr std::string_view kWhat = "keeps the KV cache of large language models";
constexpr const char* kSynopsis[] = {"larderd [OPTION VALUE]...",
                                     "larderd --check-config | --print-config [OPTION VALUE]...",
                                     "larderd --print-default-config | --print-metrics-reference"};
constexpr std::string_view kAbout =
    "larderd owns a pool of host memory and serves it to the engines, routers and operators of "
    "this host over the socket files of --socket-dir. It runs in the foreground and logs to "
    "standard error. On SIGTERM or SIGINT it drains: it refuses new work, finishes work under way, "
    "and exits. A second signal ends it at once.";
constexpr std::string_view kConfiguration =
    "Every option below is a flag (--pool 8GiB), an environment variable (LARDER_POOL=8GiB) and a "
    "key of that file. Flags override the environment, which overrides the file, which overrides "
    "the defaults. A flag, variable or key that is not an option is an error; it is not ignored.";

struct Described {
  std::string_view term, text;
};
constexpr Described kActions[] = {
    {"--check-config", "Check the whole configuration, and start nothing."},
    {"--print-config",
     "Print the effective configuration as a file for --config, with the origin of each value, "
     "and start nothing."},
    {"--print-default-config",
     "Print a configuration file that sets nothing yet: it has every option commented out, with "
     "its meaning and its default."},
    {"--print-metrics-reference", "Print the reference page of all metrics."},
    {"--print-man-page", "Print larderd(8)."},
    {"--help", "Print this text."},
    {"--version", "Print the version."},
};
constexpr Described kConfigFile = {
    "--config FILE",
    "Read options from a TOML file: the same names with _ for -, such as pool = \"8GiB\". Without "
    "this flag, $LARDER_CONFIG names the file."};
constexpr Described kExitCodes[] = {
    {"0", "success: the daemon drained, or the action is done"},
    {"1", "an internal error, or a second signal ended the daemon before it had drained"},
    {"2", "a wrong command line or configuration; the messages name the place"},
    {"3",
     "the daemon cannot start: another larderd serves the directory, a socket or port is in use, "
     "there is too little memory, or the disk cannot be used: another larderd has it, a newer one "
     "wrote it, or its directory cannot be created"},
};
constexpr const char* kExamples[] = {
    "larderd --pool 8GiB", "larderd --config /etc/larder/larderd.toml --check-config",
    "LARDER_LOG_FORMAT=json larderd --pool 64GiB --trusted-uids self,1001"};
constexpr Described kFiles[] = {
    {"SOCKET_DIR/data.sock, SOCKET_DIR/sideband.sock",
     "For engines: gRPC, and descriptors of shared memory. Mode --data-socket-mode."},
    {"SOCKET_DIR/control.sock",
     "For routers, schedulers and operators, with larderctl(1). Mode --control-socket-mode, group "
     "--control-socket-group."},
    {"SOCKET_DIR/admin.sock", "For the operator, with larderctl(1). Mode 0600."},
    {"DISK/shard-*/", "Blocks that outlive the daemon; larderctl dump reads the data files."},
};

std::string Paragraph(std::string_view text, size_t indent, std::string_view first) {
  constexpr size_t kColumns = 80;
  return Wrap(text, kColumns, indent, first);
}

// Returns the term and the text, which begins at `column` of the term's line, or of the next line
// if the term is too long.
std::string Beside(const Described& one, size_t column) {
  const std::string blanks(column, ' ');
  std::string first = absl::StrCat("  ", std::string(one.term));
  if (first.size() + 2 > column) return first + "\n" + Paragraph(one.text, column, blanks);
  first.resize(column, ' ');
  return Paragraph(one.text, column, first);
}

std::string SentenceOf(const ConfigOption& option) {
  std::string sentence(option.help);
  if (!option.default_value.empty())
    absl::StrAppend(&sentence, " Default: ", std::string(option.default_value), ".");
  return sentence;
}

std::string TermOf(const ConfigOption& option) {
  return absl::StrCat(FlagName(option), " ", std::string(option.value));
}

}  // namespace

std::string HelpText() {
  constexpr size_t kActionColumn = 21;
  std::string out = absl::StrCat(
      "larderd - the Larder daemon: ", std::string(kWhat), "\n\nUsage: ", kSynopsis[0], "\n       ",
      kSynopsis[1], "\n       ", kSynopsis[2], "\n\n", Paragraph(kAbout, 0, ""), "\nActions\n");
  for (const Described& action : kActions) out += Beside(action, kActionColumn);
  absl::StrAppend(&out, "\nConfiguration\n", Beside(kConfigFile, kActionColumn), "\n",
                  Paragraph(kConfiguration, 2, "  "));
  std::string_view group;
  for (const ConfigOption& option : ConfigOptions()) {
    if (option.group != group) {
      group = option.group;
      absl::StrAppend(&out, "\n", std::string(group), "\n");
    }
    absl::StrAppend(&out, "  ", TermOf(option), "\n", Paragraph(SentenceOf(option), 6, "      "));
  }
  out += "\nExit codes\n";
  for (const Described& code : kExitCodes) out += Beside(code, 5);
  out += "\nExamples\n";
  for (const char* const example : kExamples) absl::StrAppend(&out, "  ", example, "\n");
  return out;
}

std::string ManPage() {
  ManPageWriter page("larderd", 8, Version(), kWhat);
  page.Section("SYNOPSIS");
  for (const char* const line : kSynopsis) page.Text(line);
  page.Section("DESCRIPTION");
  page.Text(kAbout);
  page.Section("ACTIONS");
  for (const Described& action : kActions) page.Item(action.term, action.text);
  page.Section("CONFIGURATION");
  page.Item(kConfigFile.term, kConfigFile.text);
  page.Text(kConfiguration);
  std::string_view group;
  for (const ConfigOption& option : ConfigOptions()) {
    if (option.group != group) {
      group = option.group;
      page.Subsection(group);
    }
    page.Item(TermOf(option),
              absl::StrCat(SentenceOf(option), " Variable: ", VariableName(option), "."));
  }
  page.Section("EXIT STATUS");
  for (const Described& code : kExitCodes) page.Item(code.term, code.text);
  page.Section("FILES");
  for (const Described& file : kFiles) page.Item(file.term, file.text);
  page.Section("EXAMPLES");
  for (const char* const example : kExamples) page.Command(example);
  page.Section("SEE ALSO");
  page.Text("larderctl(1)");
  return std::move(page).Take();
}

}  // namespace larder
