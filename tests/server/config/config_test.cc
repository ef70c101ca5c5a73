// Configuration: values, precedence, what is refused and where the error says it is, and the round
// trip of --print-config.
#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "server/config/config_options.h"
#include "server/config/config_values.h"
#include "server/config/default_config.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string WriteFile(const std::string& text) {
  static const TemporaryDirectory directory;
  static int number = 0;
  const std::string path = directory.path() + "/" + std::to_string(number++) + ".toml";
  std::ofstream(path) << text;
  return path;
}

absl::StatusOr<LoadedConfig> Load(const std::string& file_text,
                                  std::vector<std::string> environment = {},
                                  std::vector<std::pair<std::string, std::string>> flags = {}) {
  const std::string file = file_text.empty() ? "" : WriteFile(file_text);
  return LoadConfig(
      {.flags = std::move(flags), .environment = std::move(environment), .file = file, .uid = 0});
}

std::string Error(const absl::StatusOr<LoadedConfig>& loaded) {
  EXPECT_FALSE(loaded.ok());
  if (loaded.ok()) return "";
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(loaded.status().message());
}

std::string OriginOf(const LoadedConfig& loaded, std::string_view option) {
  for (const auto& setting : loaded.settings) {
    if (setting.option == option) return setting.origin;
  }
  return "no such option";
}

TEST(ConfigTest, DefaultsAreAsDocumented) {
  const auto loaded = Load("");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Config& c = loaded->config;
  EXPECT_EQ(c.socket_dir, "/run/larder");
  EXPECT_EQ(c.DataSocket(), "/run/larder/data.sock");
  EXPECT_EQ(c.pool, GiB(1));
  EXPECT_EQ(c.slab, ByteCount(0));
  EXPECT_EQ(c.data_socket_mode, mode_t{0660});
  EXPECT_EQ(c.ControlSocket(), "/run/larder/control.sock");
  EXPECT_EQ(c.control_socket_mode, mode_t{0660});
  EXPECT_EQ(c.control_socket_group, "");
  EXPECT_THAT(c.trusted_uids, ElementsAre(0));
  EXPECT_EQ(c.lease_share, 0.25);
  EXPECT_EQ(c.evict_watermark, 0.04);
  EXPECT_EQ(c.sessions_max, 1024u);
  EXPECT_EQ(c.CheckOneIn(), 64u);
  EXPECT_EQ(c.metrics_listen, "127.0.0.1:9464");
  EXPECT_EQ(c.drain_limit, std::chrono::seconds(30));
  EXPECT_TRUE(c.lock_memory);
  EXPECT_TRUE(c.huge_pages);
  EXPECT_EQ(c.disk, "");
  EXPECT_EQ(c.disk_limit, GiB(16));
  EXPECT_EQ(c.disk_verify_rate, MiB(8));
  EXPECT_EQ(c.host_verify_rate, MiB(16));
}

TEST(ConfigTest, Disk) {
  const auto loaded = Load("disk = \"/var/cache/larder\"\n", {"LARDER_DISK_LIMIT=1.5TiB"},
                           {{"disk_verify_rate", "512KiB"}, {"disk_readers", "16"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.disk, "/var/cache/larder");
  EXPECT_EQ(loaded->config.disk_limit, GiB(1536));
  EXPECT_EQ(loaded->config.disk_verify_rate, KiB(512));
  EXPECT_EQ(loaded->config.disk_readers, 16u);
  EXPECT_EQ(Load("", {}, {{"disk_verify_rate", "0"}})->config.disk_verify_rate, ByteCount(0));
  EXPECT_EQ(Load("", {}, {{"host_verify_rate", "0"}})->config.host_verify_rate, ByteCount(0));
  EXPECT_EQ(Load("disk = \"/d\"\n", {}, {{"disk", ""}})->config.disk, "")
      << "the flag turns the disk off";
  EXPECT_EQ(Load("", {}, {{"disk_limit", "96MiB"}})->config.disk_limit, MiB(96));
}

TEST(ConfigTest, FlagsBeatEnvironmentBeatsFileBeatsDefaults) {
  const std::string file = "pool = \"2GiB\"\nsessions_max = 7\nlease_share = 0.5\n";
  const auto loaded =
      Load(file, {"LARDER_POOL=3GiB", "LARDER_SESSIONS_MAX=8", "HOME=/"}, {{"pool", "4GiB"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.pool, GiB(4));
  EXPECT_EQ(loaded->config.sessions_max, 8u);
  EXPECT_EQ(loaded->config.lease_share, 0.5);
  EXPECT_EQ(OriginOf(*loaded, "pool"), "flag --pool");
  EXPECT_EQ(OriginOf(*loaded, "sessions_max"), "environment LARDER_SESSIONS_MAX");
  EXPECT_THAT(OriginOf(*loaded, "lease_share"), HasSubstr(".toml:3"));
  EXPECT_EQ(OriginOf(*loaded, "slab"), "default");
}

TEST(ConfigTest, AWrongValueIsAnErrorEvenWhenOverridden) {
  const auto loaded = Load("pool = \"lots\"\n", {}, {{"pool", "4GiB"}});
  EXPECT_THAT(Error(loaded), HasSubstr(".toml:1: pool \"lots\" is not a size"));
}

TEST(ConfigTest, UnknownKeysAreRefusedWithTheirLine) {
  const std::string error =
      Error(Load("pool = \"2GiB\"\n\npoool = \"2GiB\"\n[disk]\npath = \"/d\"\n"));
  EXPECT_THAT(error, HasSubstr(".toml:3: unknown option poool: did you mean pool?"));
  EXPECT_THAT(error, HasSubstr(".toml:4: disk is a section"));
}

TEST(ConfigTest, UnknownLarderVariablesAreRefusedAndOtherProgramsVariablesIgnored) {
  EXPECT_THAT(Error(Load("", {"LARDER_POL=1GiB"})),
              StartsWith("LARDER_POL: unknown option pol: did you mean pool?"));
  EXPECT_THAT(Error(Load("", {"LARDER_pool=1GiB"})), HasSubstr("LARDER_pool"));
  EXPECT_THAT(Error(Load("", {"LARDER_=1"})), HasSubstr("LARDER_"));
  EXPECT_TRUE(Load("", {"LARDER_CACHE=/c", "LARDER_TEST_SEED=1", "LARDER_FUZZ_SEED=2",
                        "LARDER_SOCKET_DIR=/run/x"})
                  .ok());
}

TEST(ConfigTest, ReportsAllErrorsAtOnce) {
  const std::string error =
      Error(Load("", {"LARDER_POOL=8G"}, {{"lease_share", "2"}, {"trusted_uids", "me"}}));
  EXPECT_THAT(error, AllOf(HasSubstr("LARDER_POOL: pool \"8G\" has an unknown unit"),
                           HasSubstr("--lease-share: lease_share \"2\" is out of range"),
                           HasSubstr("--trusted-uids: trusted_uids \"me\" is not a list of uids")));
}

TEST(ConfigTest, RefusesFilesThatAreNotConfigurations) {
  EXPECT_THAT(
      Error(LoadConfig({.flags = {}, .environment = {}, .file = "/nonexistent.toml", .uid = 0})),
      HasSubstr("/nonexistent.toml: cannot read the configuration: No such file"));
  EXPECT_THAT(
      Error(LoadConfig({.flags = {}, .environment = {}, .file = ::testing::TempDir(), .uid = 0})),
      HasSubstr("Is a directory"));
  EXPECT_THAT(Error(Load("pool = \n")), HasSubstr(".toml:1: "));
  EXPECT_THAT(Error(Load("pool = \"1GiB\"\npool = \"2GiB\"\n")), HasSubstr(".toml:2: "));
  EXPECT_THAT(Error(Load(std::string((1 << 20) + 1, '#'))), HasSubstr("larger than 1 MiB"));
  EXPECT_THAT(Error(Load("pool = 2020-01-01\n")), HasSubstr(".toml:1: pool is of a kind"));
}

TEST(ConfigTest, AVariableCanNameTheFile) {
  const std::string file = WriteFile("pool = \"2GiB\"\n");
  const auto loaded = Load("", {"LARDER_CONFIG=" + file});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.pool, GiB(2));
}

TEST(ConfigTest, TomlTypesBecomeOptions) {
  const auto loaded = Load(
      "pool = 1073741824\ndata_socket_mode = 0o600\ntrusted_uids = [1001, \"self\", 7]\n"
      "huge_pages = false\nevict_watermark = 0.1\n");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.pool, GiB(1));
  EXPECT_EQ(loaded->config.data_socket_mode, mode_t{0600});
  EXPECT_THAT(loaded->config.trusted_uids, ElementsAre(0, 7, 1001));
  EXPECT_FALSE(loaded->config.huge_pages);
  EXPECT_EQ(loaded->config.evict_watermark, 0.1);
}

TEST(ConfigTest, SocketDirDefaultsByHost) {
  const auto dir = [](uid_t uid, std::vector<std::string> environment) {
    const auto loaded =
        LoadConfig({.flags = {}, .environment = environment, .file = "", .uid = uid});
    return loaded.ok() ? loaded->config.socket_dir : std::string(loaded.status().message());
  };
  EXPECT_EQ(dir(0, {"RUNTIME_DIRECTORY=/run/a:/run/b"}), "/run/a");
  EXPECT_EQ(dir(0, {"XDG_RUNTIME_DIR=/run/user/0"}), "/run/larder");
  EXPECT_EQ(dir(1000, {"XDG_RUNTIME_DIR=/run/user/1000"}), "/run/user/1000/larder");
  EXPECT_EQ(dir(1000, {"LARDER_SOCKET_DIR=/s/", "XDG_RUNTIME_DIR=/run/user/1000"}), "/s");
  EXPECT_THAT(dir(1000, {}), HasSubstr("write --socket-dir DIR"));
}

TEST(ConfigTest, RefusesImpossibleValues) {
  const auto error = [](const char* option, const std::string& text) {
    return Error(Load("", {}, {{option, text}}));
  };
  EXPECT_THAT(error("socket_dir", "run/larder"), HasSubstr("not an absolute path"));
  EXPECT_THAT(error("socket_dir", "/" + std::string(100, 'x')), HasSubstr("too long"));
  EXPECT_THAT(error("socket_dir", "/run/a\nb"), HasSubstr("control characters"));
  EXPECT_THAT(error("pool", "1MiB"), HasSubstr("at least 2MiB"));
  EXPECT_THAT(error("slab", "3MiB"), HasSubstr("multiple of 2MiB"));
  EXPECT_THAT(error("slab", "2GiB"), HasSubstr("larger than the pool"));
  EXPECT_THAT(error("memory_limit", "1MiB"), HasSubstr("too small"));
  EXPECT_THAT(error("check_host_reads", "often"), HasSubstr("is none of never, sampled, always"));
  EXPECT_THAT(error("log_level", ""), HasSubstr("is none of debug, info"));
  EXPECT_THAT(error("sessions_max", "0"), HasSubstr("from 1 to 65536"));
  EXPECT_THAT(error("sessions_max", "010"), HasSubstr("whole number"));
  EXPECT_THAT(error("metrics_listen", "0.0.0.0:9464"), HasSubstr("not a loopback address"));
  EXPECT_THAT(error("drain_limit", "30"), HasSubstr("not a duration"));
  EXPECT_THAT(error("disk", "var/cache"), HasSubstr("not an absolute path"));
  EXPECT_THAT(error("disk_limit", "95MiB"), HasSubstr("at least 96MiB"));
  EXPECT_THAT(error("disk_limit", "much"), HasSubstr("not a size"));
  EXPECT_THAT(error("disk_verify_rate", "8MiB/s"), HasSubstr("unknown unit"));
  EXPECT_THAT(error("disk_verify_rate", "-1"), HasSubstr("not a size"));
  EXPECT_THAT(error("disk_readers", "0"), HasSubstr("from 1 to 256"));
}

TEST(ConfigTest, CheckPolicies) {
  const auto one_in = [](const char* when) {
    return Load("", {}, {{"check_host_reads", when}, {"check_one_in", "9"}})->config.CheckOneIn();
  };
  EXPECT_EQ(one_in("never"), 0u);
  EXPECT_EQ(one_in("sampled"), 9u);
  EXPECT_EQ(one_in("always"), 1u);
}

TEST(ConfigTest, PrintedConfigReadsBackTheSame) {
  const auto loaded = Load("data_socket_mode = 0o666\n", {"LARDER_METRICS_LISTEN="},
                           {{"pool", "1.5GiB"},
                            {"control_socket_mode", "0600"},
                            {"control_socket_group", "routers"},
                            {"socket_dir", "/run/\"quoted\\\" dir"},
                            {"trusted_uids", "self,1001"},
                            {"evict_watermark", "7.5%"},
                            {"log_format", "json"},
                            {"disk", "/d"},
                            {"disk_limit", "100GiB"},
                            {"disk_verify_rate", "0"},
                            {"lock_memory", "false"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::string printed = PrintConfig(*loaded);
  EXPECT_THAT(printed, HasSubstr("pool = \"1.5GiB\"  # flag --pool\n"));
  EXPECT_THAT(printed, HasSubstr("metrics_listen = \"\"  # environment LARDER_METRICS_LISTEN\n"));
  const auto again = Load(printed);
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << printed;
  EXPECT_TRUE(again->config == loaded->config) << printed;
}

// The file that the package installs.
TEST(ConfigTest, TheInstalledDefaultFileIsCurrent) {
  std::ifstream file(LARDER_SOURCE_DIR "/deploy/larderd.toml");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), DefaultConfig())
      << "write it again: larderd --print-default-config > deploy/larderd.toml";
}

TEST(ConfigTest, TheDefaultFileListsEveryDefaultAndSetsNone) {
  const auto defaults = Load("");
  const std::string page = DefaultConfig();
  const auto silent = Load(page);
  ASSERT_TRUE(silent.ok()) << silent.status();
  EXPECT_TRUE(silent->config == defaults->config);
  for (const auto& setting : silent->settings) EXPECT_THAT(setting.origin, StartsWith("default"));

  // The same page without the # before each option.
  std::string spoken;
  size_t columns_max = 0;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    columns_max = std::max(columns_max, line.size());
    const bool option = line.size() > 1 && line[0] == '#' && std::islower(line[1]) != 0;
    spoken += line.substr(option ? 1 : 0) + "\n";
  }
  EXPECT_LE(columns_max, 80u);
  const auto loud = Load(spoken);
  ASSERT_TRUE(loud.ok()) << loud.status() << "\n" << spoken;
  EXPECT_TRUE(loud->config == defaults->config);
  for (const auto& setting : loud->settings)
    EXPECT_THAT(setting.origin, HasSubstr(".toml:")) << setting.option;
}

TEST(ConfigOptionsTest, EveryOptionIsUniqueAndHasHelpAndAValidDefault) {
  for (const ConfigOption& option : ConfigOptions()) {
    EXPECT_EQ(FindConfigOption(option.name), &option) << "twice: " << option.name;
    EXPECT_FALSE(option.help.empty()) << option.name;
    Config config;
    if (option.default_value.empty()) continue;
    EXPECT_TRUE(option.assign(option.default_value, 0, &config).ok()) << option.name;
  }
  EXPECT_EQ(FlagName(*FindConfigOption("data_socket_mode")), "--data-socket-mode");
  EXPECT_EQ(VariableName(*FindConfigOption("data_socket_mode")), "LARDER_DATA_SOCKET_MODE");
  EXPECT_EQ(NearestConfigOption("sesions_max"), "sessions_max");
  EXPECT_EQ(NearestConfigOption("gpu"), "");
}

TEST(ConfigValuesTest, Sizes) {
  EXPECT_EQ(*ParseSize("8GiB"), GiB(8));
  EXPECT_EQ(*ParseSize("1.5 GiB"), MiB(1536));
  EXPECT_EQ(*ParseSize("8GB"), ByteCount(8'000'000'000));
  EXPECT_EQ(*ParseSize("4096"), KiB(4));
  EXPECT_EQ(*ParseSize("4096B"), KiB(4));
  EXPECT_EQ(*ParseSize("9007199254740993"), ByteCount(9007199254740993));
  for (const char* bad : {"", "GiB", "8G", "8gib", "-1", "1e3", "8 GiB!", "0.3B", "99999999999TiB",
                          "1.2.3GiB", "0x10", " 8GiB"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
  for (const ByteCount size : {GiB(8), MiB(1536), ByteCount(4097), ByteCount(0)}) {
    EXPECT_EQ(*ParseSize(FormatSize(size)), size);
  }
  EXPECT_EQ(FormatSize(MiB(1536)), "1536MiB");
}

TEST(ConfigValuesTest, DurationsSharesModesUids) {
  EXPECT_EQ(*ParseDuration("500ms"), std::chrono::milliseconds(500));
  EXPECT_EQ(*ParseDuration("1.5s"), std::chrono::milliseconds(1500));
  EXPECT_EQ(*ParseDuration("2min"), std::chrono::minutes(2));
  for (const char* bad : {"", "30", "s", "1d", "999h", "-1s"})
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  EXPECT_EQ(*ParseShare("4%", 0, 1), 0.04);
  for (const char* bad : {"", "%", "nan", "1.5", "-0.1", "1/4"})
    EXPECT_FALSE(ParseShare(bad, 0, 1).ok()) << bad;
  for (const char* bad : {"", "660", "0o", "0777", "0060", "0668", "432"})
    EXPECT_FALSE(ParseSocketMode(bad).ok()) << bad;
  EXPECT_THAT(*ParseUids("self,7,7,self", 9), ElementsAre(7, 9));
  EXPECT_TRUE(ParseUids("", 9)->empty());
  for (const char* bad : {",", "1,", "root", "4294967295", "-1", "1 2"})
    EXPECT_FALSE(ParseUids(bad, 9).ok()) << bad;
}

TEST(ConfigValuesTest, OnlyLoopbackAddressesAreAccepted) {
  EXPECT_EQ(*ParseLoopbackAddress("localhost:1"), "127.0.0.1:1");
  EXPECT_EQ(*ParseLoopbackAddress("127.8.9.1:9"), "127.8.9.1:9");
  EXPECT_EQ(*ParseLoopbackAddress("[::1]:0"), "[::1]:0");
  EXPECT_EQ(*ParseLoopbackAddress(""), "");
  for (const char* bad : {"0.0.0.0:1", "[::]:1", "*:1", ":9464", "9464", "10.0.0.1:1", "::1:1",
                          "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:80,0.0.0.0:81",
                          "127.0.0.1.example.org:1", "[127.0.0.1]:1", "2130706433:1"}) {
    EXPECT_FALSE(ParseLoopbackAddress(bad).ok()) << bad;
  }
}

TEST(ConfigValuesTest, ErrorsShowHostileTextOnOneShortLine) {
  const std::string text = std::string("\x1b[2J\n") + std::string(10'000, 'A');
  const std::string message(ParseSize(text).status().message());
  EXPECT_LT(message.size(), 500u);
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_THAT(message, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace larder
