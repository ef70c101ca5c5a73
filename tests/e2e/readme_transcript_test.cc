// The transcripts in docs/larderctl.md must be what larderctl prints.  The test runs each command
// of the section "Operate it" on a daemon like the reader's, and compares the output except for
// numbers, sizes and times.
//
// LARDER_TEST_README=FILE makes the test write the page to FILE, with the output of this run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "tests/e2e/support/ctl_process.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kBlocks = 20;
constexpr char kFolderShown[] = "/run/larder";  // printed in place of the test's folder
constexpr char kSection[] = "\n## Operate it\n";

std::string ReadReadme() {
  std::ifstream file(LARDER_SOURCE_DIR "/docs/larderctl.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Stores one prompt of twenty blocks.
void PutPrompt(Session& session) {
  const ContentSpec content{
      .tenant = {}, .model = "my-model", .revision = {}, .salt = {}, .lora = {}, .multimodal = {}};
  const VariantSpec variant{
      .dtype = "f16", .layout = "my-engine/1/any", .group = {}, .block_tokens = 16, .layers = 2};
  const auto handles = session.Register({&content, 1}, {&variant, 1});
  ASSERT_TRUE(handles.ok()) << handles.status();
  Digest parent = session.Seed(content);
  const std::vector<std::byte> layer(60'000, std::byte{7});
  const std::span<const std::byte> layers[] = {layer, layer};
  for (uint32_t block = 0; block < kBlocks; ++block) {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < 16; ++i) tokens.push_back(block * 16 + i);
    const Digest digest = Chain(parent, tokens).back();
    const PutBlock put{.digest = digest, .parent = parent, .tokens = tokens, .segments = layers};
    const auto status = session.Put(handles->front(), {&put, 1});
    ASSERT_TRUE(status.ok() && status->front() == BlockStatus::kOk);
    parent = digest;
  }
}

void WriteTokens(const std::string& path, uint32_t count) {
  std::ofstream file(path);
  for (uint32_t i = 0; i < count; ++i) file << i << "\n";
}

// Returns the text as a terminal shows it in the end: of a line that was drawn several times, only
// the last drawing.
std::string Shown(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (std::string& line : lines) {
    while (line.ends_with('\r')) line.pop_back();
    if (const size_t at = line.rfind("\x1b[K"); at != std::string::npos) line.erase(0, at + 3);
  }
  return absl::StrJoin(lines, "\n");
}

// Replaces the parts of the text that differ from run to run.
std::string Shape(std::string text) {
  const std::pair<const char*, const char*> kRules[] = {
      {"[ \n]+", " "},  // first: a line may end between a number and its unit
      {"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID"},
      {kFolderShown, "FOLDER"},
      {"[0-9][0-9.,]*( ?(B|KiB|MiB|GiB|us|ms|s|min)\\b( [0-9]+ s)?)?", "N"},
      {"N [A-Z]{3,5}\\b", "N ZONE"},
  };
  for (const auto& [pattern, with] : kRules)
    text = std::regex_replace(text, std::regex(pattern), with);
  return text;
}

struct Command {
  size_t begin = 0, end = 0;  // where its output is in the page
  std::string line, output;
};

// Returns the commands, which are lines "$ command".  Their outputs end at the next command or at
// the end of the code block.
std::vector<Command> CommandsOf(const std::string& readme) {
  std::vector<Command> commands;
  const size_t section = readme.find(kSection);
  if (section == std::string::npos) return commands;
  const size_t end = readme.find("\n## ", section + 1);
  for (size_t at = section;;) {
    const size_t block = readme.find("\n```console\n", at);
    if (block >= end) return commands;
    const size_t close = readme.find("\n```\n", block + 1) + 1;
    for (size_t line = readme.find("\n$ ", block); line < close - 1;) {
      Command command;
      command.begin = readme.find('\n', line + 1) + 1;
      command.line = readme.substr(line + 3, command.begin - line - 4);
      line = std::min(readme.find("\n$ ", line + 1), close - 1);
      command.end = line + 1;
      command.output = readme.substr(command.begin, command.end - command.begin);
      commands.push_back(command);
    }
    at = close;
  }
}

TEST(ReadmeTranscript, IsWhatLarderctlPrints) {
  const auto folder = std::make_shared<TemporarySocketDirectory>();
  DaemonProcess daemon({"--pool", "256MiB", "--slab", "64MiB", "--disk", folder->File("disk"),
                        "--disk-limit", "400MiB"},
                       DaemonProcess::Options{.folder = folder});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  auto client = Client::Connect({.socket_dir = folder->path()});
  ASSERT_TRUE(client.ok()) << client.status();
  auto session = (*client)->Attach({.engine_id = "engine-0"});
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_NO_FATAL_FAILURE(PutPrompt(**session));
  ASSERT_TRUE(
      Eventually([&] { return daemon.Metric("larder_disk_blocks{where=\"all\"}") == kBlocks; }));
  WriteTokens(folder->File("prompt.ids"), kBlocks * 16);
  WriteTokens(folder->File("system.ids"), 2 * 16);
  std::filesystem::create_directory_symlink(LARDER_SOURCE_DIR "/tests", folder->File("tests"));

  std::string readme = ReadReadme();
  std::vector<Command> commands = CommandsOf(readme);
  ASSERT_GE(commands.size(), 16u);
  for (Command& command : commands) {
    if (command.line.find("drain") != std::string::npos) session->reset();  // ends, as a drain asks
    CtlOptions options;
    options.socket_dir = folder->path();
    options.folder = folder->path();
    options.columns = 80;
    options.shell_line = command.line;
    const std::string printed =
        absl::StrReplaceAll(Shown(RunCtl({}, options).out), {{folder->path(), kFolderShown}});
    EXPECT_EQ(Shape(printed), Shape(command.output)) << command.line;
    command.output = printed;
  }
  EXPECT_EQ(daemon.Wait(), 0) << "the last command drains the daemon";
  if (const char* const to = std::getenv("LARDER_TEST_README")) {
    for (size_t i = commands.size(); i-- > 0;) {
      const Command& command = commands[i];
      readme.replace(command.begin, command.end - command.begin, command.output);
    }
    std::ofstream(to) << readme;
  }
}

}  // namespace
}  // namespace larder::e2e
