// Runs larderctl against a real daemon, as a new user would try it.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/restore/costs/profile.h"
#include "tests/e2e/support/ctl_process.h"
#include "tests/e2e/support/verb_fixture.h"

namespace larder::e2e {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr uint32_t kBlocks = 20;

const Words kVerbs = {"status",   "top",   "instances", "lookup", "watch",      "prefetch",
                      "pin",      "unpin", "move",      "clear",  "verify",     "bench",
                      "compress", "dump",  "config",    "drain",  "completion", "profile"};

class LarderctlTest : public VerbTest {
 protected:
  CtlOutcome Ctl(const Words& arguments, CtlOptions options = {}) const {
    if (options.socket_dir.empty()) options.socket_dir = folder_->path();
    return RunCtl(arguments, options);
  }
  CtlOutcome OnTerminal(const Words& arguments, unsigned short columns,
                        const std::string& typed = "") const {
    CtlOptions options;
    options.columns = columns;
    options.input = typed;
    return Ctl(arguments, options);
  }
  // Runs larderctl with the words of a line.
  CtlOutcome Line(const std::string& line, CtlOptions options = {}) const {
    return Ctl(absl::StrSplit(line, ' ', absl::SkipEmpty()), std::move(options));
  }
  json Json(const std::string& line, int want_code = 0) const {
    const CtlOutcome ran = Line(line + " -o json");
    EXPECT_EQ(ran.code, want_code) << line << ": " << ran.err;
    json parsed = json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(parsed.is_discarded()) << line << ": " << ran.out;
    return parsed;
  }
  // Expects an error with this exit code that says what happened and what to run next.
  void ExpectError(const CtlOutcome& ran, int code, const std::string& what,
                   const std::string& next) const {
    EXPECT_EQ(ran.code, code) << ran.out << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(what));
    EXPECT_THAT(ran.err, HasSubstr("\n  next: ")) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(next));
    EXPECT_THAT(ran.out, IsEmpty());
  }
  [[nodiscard]] std::string Key(uint32_t number) const {
    return variant_.id.Hex() + ":" + maker_.Block(number).digest.Hex();
  }
  [[nodiscard]] std::string TokensOf(uint32_t number) const {
    return "--model e2e --tokens " + absl::StrJoin(maker_.Block(number).tokens, ",");
  }
  void StartWithBlocks(std::vector<std::string> flags = {}) {
    ASSERT_NO_FATAL_FAILURE(Start(std::move(flags)));
    ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  }
};

// ---- as people use it

TEST_F(LarderctlTest, EveryVerbHasHelpThatFitsTheTerminal) {
  std::vector<Words> pages = {{"--help"}};
  for (const std::string& verb : kVerbs) pages.push_back({verb, "--help"});
  for (const Words& page : pages) {
    const CtlOutcome piped = Ctl(page);
    EXPECT_EQ(piped.code, 0) << page[0];
    EXPECT_THAT(piped.err, IsEmpty());
    EXPECT_THAT(piped.out, HasSubstr("Usage: larderctl"));
    EXPECT_LE(LongestLine(piped.out), 80u) << piped.out;
    EXPECT_EQ(piped.out.find("\nExamples\n") != std::string::npos, page.size() == 2) << page[0];
    for (const uint16_t columns : std::vector<uint16_t>{80, 40}) {
      const CtlOutcome shown = OnTerminal(page, columns);
      EXPECT_EQ(shown.code, 0);
      EXPECT_LE(LongestLine(shown.out), columns) << shown.out;
    }
  }
  // The first page names all verbs.
  const std::string first = Ctl({"--help"}).out;
  for (const std::string& verb : kVerbs) EXPECT_THAT(first, HasSubstr("\n  " + verb + " "));
  EXPECT_THAT(Ctl({"--version"}).out, ::testing::StartsWith("larderctl "));
}

TEST_F(LarderctlTest, WrongCommandLinesAreExplained) {
  ExpectError(Line("stauts"), 2, "did you mean status?", "larderctl --help");
  ExpectError(Line("mvoe --all"), 2, "did you mean move?", "larderctl --help");
  ExpectError(Line("xyzzy"), 2, "no verb \"xyzzy\"\n", "larderctl --help");
  ExpectError(Ctl({}), 2, "no verb", "larderctl --help");
  ExpectError(Line("pin --ownre x"), 2, "did you mean --owner?", "larderctl pin --help");
  ExpectError(Line("status --outptu json"), 2, "did you mean --output?", "larderctl status --help");
  ExpectError(Line("status now"), 2, "unexpected \"now\"", "larderctl status --help");
  ExpectError(Line("-o yaml status"), 2, "not one of table|json", "larderctl");
  ExpectError(Line("pin --ttl 5 00"), 2, "not a duration", "larderctl pin --help");
  ExpectError(Line("pin zz"), 2, "\"zz\" is not a key", "larderctl pin --help");
  ExpectError(Ctl({"pin", "\x1b[2Jz"}), 2, "\"\\x1b[2Jz\" is not a key", "larderctl pin --help");
  ExpectError(Line("pin"), 2, "no blocks are named", "larderctl pin --help");
  ExpectError(Line("unpin --all --tokens 1"), 2, "name blocks, or give --all", "larderctl unpin");
  ExpectError(Line("clear --all --content --yes"), 2, "more than one way", "larderctl clear");
  ExpectError(Line("clear --writer-uid root"), 2, "\"root\" is neither a uid", "larderctl clear");
  ExpectError(Line("clear --writer-engine e"), 2, "--writer-engine needs --writer-uid",
              "larderctl clear");
  ExpectError(Line("clear --writer-uid 1 --model m"), 2, "leave out --model", "larderctl clear");
  ExpectError(Line("clear --writer-uid 1 --all"), 2, "more than one way", "larderctl clear");
  ExpectError(Line("lookup --tokens 1"), 2, "--model is missing", "larderctl lookup --help");
  ExpectError(Line("dump /nonexistent"), 2, "cannot open /nonexistent", "larderctl dump --help");
  CtlOptions slip;
  slip.environment = {"LARDERCTL_OUTPTU=json"};
  ExpectError(Line("status", slip), 2, "did you mean LARDERCTL_OUTPUT?", "larderctl");
}

TEST_F(LarderctlTest, EveryVerbReportsThatNoDaemonAnswers) {
  const std::string key = std::string(32, 'a');
  const Words lines = {"status",
                       "top",
                       "instances",
                       "lookup --model m --tokens 1",
                       "watch",
                       "prefetch " + key,
                       "pin " + key,
                       "unpin " + key,
                       "move --all --from host --to disk",
                       "compress --all",
                       "clear --all --yes",
                       "verify",
                       "bench",
                       "profile",
                       "config",
                       "drain --yes"};
  for (const std::string& line : lines)
    ExpectError(Line(line), 3, "no larderd answers at " + folder_->path(), "next: larderd --pool");
  // A daemon that was killed leaves its socket files.
  ASSERT_NO_FATAL_FAILURE(Start());
  daemon_->Kill9();
  ExpectError(Line("status"), 3, "has ended", "next: larderd --pool");
  ExpectError(Line("instances"), 3, "has ended", "next: larderd --pool");
}

TEST_F(LarderctlTest, MissingRightsAreExplained) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(chmod(folder_->path().c_str(), 0755), 0);
  CtlOptions other_user;
  other_user.uid = 65'534;
  if (Line("--version", other_user).code != 0)
    GTEST_SKIP() << "another user cannot execute this build";
  ExpectError(Line("status", other_user), 4, "admin.sock, which is for the user that runs larderd",
              "next: sudo larderctl status");
  ExpectError(Line("drain --yes", other_user), 4, "no permission", "next: sudo larderctl drain");
  ExpectError(Line("instances", other_user), 4, "control.sock, which is for routers",
              "next: sudo larderctl instances");
  ExpectError(Line("instances --tenant other"), 4, "tenant", "next: larderctl");
}

// An older larderctl calls data.sock, as does one with --socket.
TEST_F(LarderctlTest, VerbsOfOperatorsAreRefusedAtTheDataSocket) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string at_data = "--socket " + folder_->File("data.sock") + " ";
  ExpectError(Line(at_data + "clear --all --yes"), 4,
              "Clear is not served at data.sock but at " + folder_->File("control.sock"),
              "next: larderctl clear --help");
  EXPECT_EQ(Line(at_data + "instances").code, 0);
}

TEST_F(LarderctlTest, EndsBySigpipeWhenItsReaderHasGone) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  CtlOptions gone;
  gone.reader_gone = true;
  for (const char* line : {"status", "watch --snapshot", "--help", "instances -o json", "config"}) {
    const CtlOutcome ran = Line(line, gone);
    EXPECT_EQ(ran.code, 128 + SIGPIPE) << line;
    EXPECT_THAT(ran.err, IsEmpty()) << line;
  }
  // The same holds while larderctl waits for something to write.
  CtlOptions into_head;
  into_head.shell_line =
      "timeout 20 larderctl watch --snapshot --tier host | head -20; echo ${PIPESTATUS[*]}";
  const CtlOutcome headed = Ctl({}, into_head);
  EXPECT_THAT(headed.out, ::testing::EndsWith("\n141 0\n"));
  EXPECT_THAT(headed.err, IsEmpty());
  const std::string to_full =
      "LARDER_SOCKET_DIR=" + folder_->path() + " " LARDERCTL_PATH " status >/dev/full 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(to_full.c_str())), 5);
}

TEST_F(LarderctlTest, NothingIsWiderThanTheTerminal) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  auto wide = client_->Attach({.engine_id = std::string(200, 'e') + "\x1b[31m"});
  ASSERT_TRUE(wide.ok()) << wide.status();
  ASSERT_TRUE((*wide)->Register({&maker_.content, 1}, {&maker_.variant, 1}).ok());
  const Words lines = {"status",
                       "instances",
                       TokensOf(3) + " lookup",
                       "watch --once",
                       "pin " + Key(1),
                       "prefetch " + Key(1) + " " + std::string(32, 'a'),
                       "unpin " + Key(1),
                       "move --all --from host --to disk --copy",
                       "compress --all",
                       "clear --dry-run --all",
                       "verify",
                       "config",
                       "dump " LARDER_GOLDEN_RECORD,
                       "bench --blocks 8 --block-bytes 64KiB",
                       "profile --blocks 8 --block-bytes 64KiB",
                       "clear " + std::string(32, 'a'),
                       "stauts",
                       "status --socket-dir /" + std::string(90, 'x'),
                       "pin " + std::string(150, 'z')};
  for (const std::string& line : lines) {
    for (const uint16_t columns : std::vector<uint16_t>{80, 50}) {
      const CtlOutcome shown = OnTerminal(absl::StrSplit(line, ' '), columns, "n\n");
      EXPECT_LE(LongestLine(shown.out), columns) << line << "\n" << shown.out;
      EXPECT_THAT(shown.out, Not(IsEmpty()));
      EXPECT_THAT(shown.out, Not(HasSubstr("\x1b[31m"))) << line;
    }
  }
  // Output to a pipe is not cut.
  EXPECT_THAT(Line("instances").out, HasSubstr(std::string(200, 'e') + "\\x1b[31m "));
}

TEST_F(LarderctlTest, DestructiveVerbsAskFirst) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  const auto stored = [&] { return CountIn(Tier::kHost, 0, kBlocks); };
  ExpectError(Line("clear --all"), 2, "cannot ask for confirmation", "--yes");
  ExpectError(Line("drain"), 2, "cannot ask for confirmation", "--yes");
  const json would = Json("clear --all --dry-run");
  EXPECT_EQ(would.at("dry_run"), true);
  EXPECT_EQ(would.at("host").at("blocks"), kBlocks);
  EXPECT_EQ(would.at("disk").at("blocks"), kBlocks);
  const std::string user = std::to_string(geteuid());
  EXPECT_EQ(Json("clear --dry-run --writer-uid " + user).at("host").at("blocks"), kBlocks);
  EXPECT_EQ(Json("clear --dry-run --writer-uid 64999").at("host").at("blocks"), 0);
  EXPECT_EQ(Json("clear --dry-run --writer-uid unknown").at("host").at("blocks"), 0);
  EXPECT_EQ(
      Json("clear --dry-run --writer-engine other --writer-uid " + user).at("host").at("blocks"),
      0);
  EXPECT_THAT(Line("watch --once --with-tokens").out, HasSubstr(" 0 uid " + user + "\n"));
  CtlOutcome asked = OnTerminal({"clear", "--all"}, 80, "n\n");
  EXPECT_EQ(asked.code, 2);
  EXPECT_THAT(asked.out, HasSubstr("Host: 20 blocks"));
  EXPECT_THAT(asked.out, HasSubstr("nothing was done"));
  EXPECT_EQ(OnTerminal({"drain"}, 80, "\n").code, 2);
  EXPECT_EQ(stored(), kBlocks);
  EXPECT_TRUE(daemon_->alive());
  asked = OnTerminal({"clear", "--all"}, 80, "y\n");
  EXPECT_EQ(asked.code, 0) << asked.out;
  EXPECT_EQ(stored(), 0u);
}

TEST_F(LarderctlTest, CtrlCCancelsTheCallAndSaysSo) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  CtlOptions interrupted;
  interrupted.columns = 80;
  interrupted.signal_at = "verify host";  // the progress bar
  const CtlOutcome ran = Line("verify --tier host --rate 1", interrupted);
  EXPECT_EQ(ran.code, 130) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("interrupted: the call was cancelled"));
  EXPECT_THAT(ran.out, HasSubstr("next: the same larderctl verify"));
  // For verbs that end only by Ctrl-C, it is no error.
  CtlOptions ended;
  ended.signal_at = Key(kBlocks - 1);
  const CtlOutcome watched = Line("watch --snapshot", ended);
  EXPECT_EQ(watched.code, 0) << watched.err;
  CtlOptions of_top;
  of_top.columns = 80;
  of_top.signal_at = "A SECOND";
  EXPECT_EQ(Line("top --interval 10ms", of_top).code, 0);
  // An interrupted bench leaves no blocks behind.
  CtlOptions of_bench;
  of_bench.columns = 80;
  of_bench.signal_at = "put [";
  EXPECT_EQ(Line("bench --blocks 4000 --block-bytes 256KiB", of_bench).code, 130);
  EXPECT_EQ(Json("clear --model larderctl-bench --content --dry-run").at("host").at("blocks"), 0);
}

// ---- verb by verb, as programs use it

TEST_F(LarderctlTest, ShowsTheStateOfTheDaemon) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  const json status = Json("status");
  EXPECT_EQ(status.at("boot_id"), daemon_->Stats().boot_id());
  EXPECT_EQ(status.at("tenants")[0].at("blocks"), kBlocks);
  EXPECT_EQ(status.at("gauges").at("larder_disk_blocks{where=\"all\"}"), kBlocks);
  EXPECT_EQ(status.at("counters").at("larder_blocks_put_total{result=\"published\"}"), kBlocks);
  EXPECT_THAT(Line("status").out,
              ContainsRegex("\nblocks +20 in host, 20 on disk, 0 of them on disk only"));
  EXPECT_TRUE(Json("top --interval 10ms").contains("per_second"));
  EXPECT_THAT(Line("top --once --interval 10ms").out, HasSubstr("blocks put"));
  EXPECT_THAT(Json("config").at("toml").get<std::string>(), HasSubstr("disk_limit = \"400MiB\""));
  const json instances = Json("instances");
  ASSERT_EQ(instances.size(), 1u);
  EXPECT_EQ(instances[0].at("engine_id"), "disk");
  EXPECT_EQ(instances[0].at("variants")[0].at("id"), variant_.id.Hex());
  EXPECT_THAT(Line("instances").out,
              HasSubstr("disk    attached         1  mapped  -           20"));
}

TEST_F(LarderctlTest, LookupAndNamesOfBlocks) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  const json found = Json("lookup " + TokensOf(3));
  EXPECT_EQ(found.at("instances")[0].at("tiers")[0].at("contiguous_tokens"), 16);
  Json("lookup --model other --tokens 1,2,3", 1);
  EXPECT_EQ(Json("lookup --model e2e " + maker_.Block(3).digest.Hex()), found);
  CtlOptions tokens;
  tokens.input = "[" + absl::StrJoin(maker_.Block(3).tokens, ", ") + "]\n";
  EXPECT_EQ(Line("lookup --model e2e --tokens -", tokens).code, 0);
  // Other verbs accept the output of watch as it is.
  const CtlOutcome all = Line("watch --once --tier host");
  EXPECT_EQ(all.code, 0);
  EXPECT_THAT(all.out, HasSubstr(Key(7) + " stored  host 0\n"));
  CtlOptions keys;
  keys.input = "KEY EVENT TIER\n# mine\n\n" + all.out;
  EXPECT_EQ(json::parse(Line("prefetch -o json -", keys).out).at("blocks").size(), kBlocks);
  const CtlOutcome events = Line("watch --once --with-tokens -o json");
  for (const absl::string_view line : absl::StrSplit(events.out, '\n', absl::SkipEmpty())) {
    const json event = json::parse(std::string(line), nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(event.is_discarded()) << line;
    EXPECT_EQ(event.at("tokens").size(), 16 * event.at("digests").size());
  }
  const std::string file = folder_->File("keys");
  std::ofstream(file) << all.out;
  EXPECT_EQ(Json("prefetch @" + file).at("blocks").size(), kBlocks);
}

TEST_F(LarderctlTest, PinPrefetchUnpin) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  const json pinned = Json("pin --owner me --ttl 1h " + Key(1) + " " + Key(2));
  EXPECT_EQ(pinned.at("blocks")[1].at("status"), "ok");
  EXPECT_EQ(pinned.at("durable"), true);
  EXPECT_EQ(daemon_->Tenant().pins(), 2u);
  EXPECT_EQ(Json("pin --owner me " + TokensOf(3)).at("blocks").size(), 1u);
  const json missing = Json("pin " + std::string(32, 'a'), 1);
  EXPECT_EQ(missing.at("blocks")[0].at("status"), "missing");
  EXPECT_EQ(Json("unpin --owner me " + Key(1)).at("unpinned"), 1);
  Json("unpin --owner other " + Key(2), 1);
  // Clear keeps pinned blocks and reports how many.
  EXPECT_EQ(Json("clear --yes " + Key(2), 1).at("kept_pinned"), 1);
  EXPECT_EQ(Json("unpin --owner me --all").at("unpinned"), 2);
  EXPECT_EQ(Json("prefetch --ttl 2min " + Key(1)).at("blocks")[0].at("status"), "ok");
}

TEST_F(LarderctlTest, MoveVerifyClear) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  EXPECT_EQ(Json("move --all --from host --to disk").at("moved"), kBlocks);
  EXPECT_EQ(CountIn(Tier::kHost, 0, kBlocks), 0u);
  EXPECT_EQ(Json("move --model e2e --content --from disk --to host --copy").at("moved"), kBlocks);
  const json verified = Json("verify");
  ASSERT_EQ(verified.at("tiers").size(), 2u);
  EXPECT_EQ(verified.at("tiers")[0].at("whole"), kBlocks);
  EXPECT_EQ(verified.at("tiers")[1].at("whole"), kBlocks);
  const CtlOutcome shown = OnTerminal({"verify"}, 80);
  EXPECT_THAT(shown.out, HasSubstr("verify host ["));

  EXPECT_EQ(Json("clear --yes --tier host " + Key(1)).at("host").at("blocks"), 1);
  EXPECT_EQ(CountIn(Tier::kDisk, 1, 2), 1u);
  Json("clear --yes " + std::string(32, 'a'), 1);
  EXPECT_EQ(Json("clear --yes --model e2e --prefix " + absl::StrJoin(maker_.Block(5).tokens, ","))
                .at("disk")
                .at("blocks"),
            1);
  EXPECT_EQ(Json("clear --yes --model e2e --content").at("disk").at("blocks"), kBlocks - 1);
}

TEST_F(LarderctlTest, Compress) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  const json would = Json("compress --all --dry-run");
  EXPECT_EQ(would.at("changed").get<uint64_t>() + would.at("unchanged").get<uint64_t>(),
            would.at("blocks"));
  const json done = Json("compress --all --tier host");
  EXPECT_EQ(done.at("blocks"), kBlocks);
  EXPECT_LE(done.at("bytes_after"), done.at("bytes_before"));
  EXPECT_EQ(CountIn(Tier::kHost, 0, kBlocks), kBlocks);
  const json back = Json("compress --all --codec identity");
  EXPECT_GE(back.at("bytes_after"), back.at("bytes_before"));
  const json missing = Json("compress " + std::string(32, 'a'), 1);
  EXPECT_EQ(missing.at("answers")[0].at("status"), "missing");
  ExpectError(Line("compress --all --codec zip"), 2, "--codec", "larderctl compress --help");
}

TEST_F(LarderctlTest, RefusedAndLateCallsAreExplained) {
  daemon_ = std::make_unique<DaemonProcess>(Words{}, DaemonProcess::Options{.folder = folder_});
  ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  ExpectError(Line("move --all --from host --to disk"), 5, "has no disk", "larderctl config");
  ExpectError(Line("verify --tier disk"), 5, "has no disk", "larderctl config");
  EXPECT_EQ(Json("verify").at("tiers").size(), 1u);
  ExpectError(Line("watch --boot-id other --after 5"), 5, "", "larderctl watch --snapshot");
  ExpectError(Line("watch --boot-id other --after 5 --tier device --with-tokens"), 5, "",
              "larderctl watch --snapshot --tier device --with-tokens");
  daemon_->Signal(SIGSTOP);
  ExpectError(Line("status --timeout 200ms"), 6, "does not answer", "kill -CONT");
  daemon_->Signal(SIGCONT);
}

TEST_F(LarderctlTest, BenchLeavesNoBlocks) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  const json bench = Json("bench --blocks 32 --block-bytes 64KiB");
  EXPECT_EQ(bench.at("got"), 32);
  EXPECT_EQ(bench.at("wrong"), 0);
  EXPECT_GT(bench.at("put_bytes_per_s"), 0);
  EXPECT_EQ(Json("status").at("tenants")[0].at("blocks"), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
}

TEST_F(LarderctlTest, ProfileMeasuresBothChannelsAndLeavesNoBlocks) {
  ASSERT_NO_FATAL_FAILURE(StartWithBlocks());
  const json rates = Json("profile --blocks 32 --block-bytes 64KiB");
  ASSERT_EQ(rates.at("channels").size(), 2u);
  EXPECT_EQ(rates.at("channels")[0].at("name"), "pool");
  EXPECT_EQ(rates.at("channels")[1].at("name"), "disk");
  for (const json& channel : rates.at("channels")) EXPECT_GT(channel.at("bytes_per_s"), 0);
  EXPECT_EQ(rates.count("compute"), 0u);
  EXPECT_EQ(Json("status").at("tenants")[0].at("blocks"), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  CtlOptions interrupted;
  interrupted.columns = 80;
  interrupted.signal_at = "put [";
  EXPECT_EQ(Line("profile --blocks 4000 --block-bytes 256KiB", interrupted).code, 130);
  EXPECT_EQ(Json("clear --model larderctl-profile --content --dry-run").at("host").at("blocks"), 0);
}

TEST_F(LarderctlTest, ProfileIsMergedWithTheEnginesProfile) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string engine = folder_->path() + "/engine.toml", merged = folder_->path() + "/p.toml";
  const Profile of_engine{.model = "m",
                          .layers = 28,
                          .compute = {1e-3, 2e-4, 3e-9},
                          .channels = {{"peer:10.0.0.2", 1e9}, {"pool", 5}},
                          .doubt = 0.3};
  ASSERT_TRUE(WriteProfile(of_engine, engine).ok());
  const std::string small = " --blocks 32 --block-bytes 64KiB";
  const CtlOutcome ran = Line("profile --engine " + engine + " --write " + merged + small);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("pool"));
  EXPECT_THAT(ran.out, HasSubstr(merged));
  const absl::StatusOr<Profile> read = ReadProfile(merged);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->model, "m");
  EXPECT_EQ(read->layers, 28);
  EXPECT_DOUBLE_EQ(read->compute.linear_s, 2e-4);
  EXPECT_DOUBLE_EQ(read->doubt, 0.3) << "the cost of computing comes from the engine's profile";
  ASSERT_EQ(read->channels.size(), 3u);  // in their former places, which are their ids
  EXPECT_EQ(read->channels[0].name, "peer:10.0.0.2");
  EXPECT_DOUBLE_EQ(read->channels[0].bytes_per_s, 1e9);
  EXPECT_EQ(read->channels[1].name, "pool");
  EXPECT_GT(read->channels[1].bytes_per_s, 1e6);
  EXPECT_EQ(read->channels[2].name, "disk");

  ExpectError(Line("profile --write " + merged), 2, "--write needs --engine", "larderctl");
  ExpectError(Line("profile --engine /nowhere.toml"), 2, "/nowhere.toml", "larderctl profile");
  ExpectError(Line("profile --blocks 0"), 2, "--blocks: 1 to 8192", "larderctl");
  ExpectError(Line("profile --engine " + engine + " --write /nowhere/p.toml" + small), 3,
              "cannot be written", "larderctl profile");
  EXPECT_EQ(Json("clear --model larderctl-profile --content --dry-run").at("host").at("blocks"), 0);
}

TEST_F(LarderctlTest, ProfileOfADaemonWithoutADisk) {
  daemon_ = std::make_unique<DaemonProcess>(Words{}, DaemonProcess::Options{.folder = folder_});
  ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  const CtlOutcome ran = Line("profile --blocks 32 --block-bytes 64KiB");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("pool"));
  EXPECT_THAT(ran.out, Not(HasSubstr("disk")));
  EXPECT_THAT(ran.err, HasSubstr("has no disk"));
}

TEST_F(LarderctlTest, DrainWaitsUntilTheDaemonHasEnded) {
  ASSERT_NO_FATAL_FAILURE(Start());
  session_.reset();
  const json drained = Json("drain --yes --wait --limit 20s");
  EXPECT_EQ(drained.at("ended"), true);
  EXPECT_EQ(daemon_->Wait(), 0) << daemon_->errors();
}

}  // namespace
}  // namespace larder::e2e
