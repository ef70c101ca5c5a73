#include "storage/replay/trace_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/temporary_directory.h"

namespace larder::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceFilesTest : public ::testing::Test {
 protected:
  std::string Written(const std::string& name, std::string_view text) {
    const std::string path = directory_.File(name);
    std::ofstream(path) << text;
    return path;
  }
  // The error of a file of this text.
  std::string ErrorOf(std::string_view text) {
    const absl::StatusOr<RequestTrace> trace = ParseTrace(text, "bad");
    EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << trace.status();
    return std::string(trace.status().message());
  }

  // The first `count` blocks.
  static std::vector<BlockId> Front(std::vector<BlockId> blocks, size_t count) {
    blocks.resize(count);
    return blocks;
  }

  TemporaryDirectory directory_;
};

TEST_F(TraceFilesTest, ReadsPlainLines) {
  const auto trace = ReadTrace(Written("t.txt",
                                       "# a comment\n"
                                       "# block_tokens 64\n"
                                       "0.5 1 2 18446744073709551615\r\n"
                                       "\n"
                                       "0.5 1 2\n"
                                       "7 4\n"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->block_tokens, 64u);
  ASSERT_EQ(trace->requests.size(), 3u);
  EXPECT_EQ(trace->requests[0].at_s, 0.5);
  EXPECT_EQ(trace->requests[0].blocks.size(), 3u);
  EXPECT_EQ(trace->requests[1].blocks, Front(trace->requests[0].blocks, 2));
  EXPECT_EQ(trace->requests[2].blocks.size(), 1u);
  EXPECT_EQ(Footprint(*trace), 4u);
}

// In some traces equal tokens have equal ids wherever they are, so an id may come twice in one
// prompt, or behind two beginnings; KV is shared behind equal beginnings alone.
TEST_F(TraceFilesTest, ABlockIsNamedByAllThatComesBeforeIt) {
  const auto trace = ParseTrace("0 7 7 7\n1 7 7\n2 9 7\n", "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  const std::vector<BlockId>& first = trace->requests[0].blocks;
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(trace->requests[1].blocks, Front(first, 2));
  EXPECT_EQ(Footprint(*trace), 5u);
}

TEST_F(TraceFilesTest, ReadsMooncakesLines) {
  const auto trace = ParseTrace(
      R"({"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]})"
      "\n"
      R"({"timestamp": 3052, "input_length": 600, "output_length": 5, "hash_ids": [0, 2]})",
      "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->block_tokens, 512u);
  EXPECT_EQ(trace->requests[1].at_s, 3.052);
  EXPECT_EQ(trace->requests[1].blocks[0], trace->requests[0].blocks[0]);
  EXPECT_EQ(Footprint(*trace), 3u);
}

TEST_F(TraceFilesTest, ReadsBailiansLines) {
  const auto trace = ParseTrace(
      R"({"chat_id": 9, "parent_chat_id": -1, "timestamp": 61.114, "turn": 1, "hash_ids": [7, 8]})",
      "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->block_tokens, 16u);
  EXPECT_EQ(trace->requests[0].at_s, 61.114);
  EXPECT_EQ(trace->requests[0].blocks.size(), 2u);
}

// A session of three requests, one of them in an inner list.
std::string Session(const std::string& scope) {
  return absl::StrCat(R"({"id": "a", "block_size": 64, )", scope,
                      R"("requests": [{"t": 0.0, "type": "n", "hash_ids": [1, 2]},)"
                      R"({"t": 1.0, "requests": )"
                      R"([{"t": 90.0, "type": "n", "hash_ids": [1, 3]}]},)"
                      R"({"t": 5.0, "type": "s", "hash_ids": [1, 2, 4]}]})");
}

TEST_F(TraceFilesTest, SessionsHaveIdsAndClocksOfTheirOwn) {
  for (const char* const scope : {"", R"("hash_id_scope": "local", )"}) {
    const auto trace = ParseTrace(absl::StrCat(Session(scope), "\n", Session(scope)), "t",
                                  {.session_every_s = 10});
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->block_tokens, 64u);
    std::vector<double> times;
    for (const TracedRequest& request : trace->requests) times.push_back(request.at_s);
    EXPECT_THAT(times, ElementsAre(0, 5, 10, 15, 90, 100));
    EXPECT_EQ(Footprint(*trace), 8u) << "blocks of two sessions were taken for the same";
    // A request of an inner list shares the blocks of its session.
    EXPECT_EQ(trace->requests[4].blocks[0], trace->requests[0].blocks[0]);
  }
}

TEST_F(TraceFilesTest, GlobalIdsAreSharedAmongSessions) {
  const std::string global = Session(R"("hash_id_scope": "global", )");
  const auto trace = ParseTrace(absl::StrCat(global, "\n", Session(""), "\n", global), "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(Footprint(*trace), 8u);
}

TEST_F(TraceFilesTest, ReadsAFolderOfSessionsAndASessionOfManyLines) {
  Written("b.json", Session(""));
  std::string lines = Session("");
  std::replace(lines.begin(), lines.end(), ' ', '\n');
  const std::string one = Written("a.json", lines);
  Written("notes.txt", "not read");
  const auto folder = ReadTrace(directory_.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(folder->requests.size(), 6u);
  const auto file = ReadTrace(one);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->requests.size(), 3u);
}

TEST_F(TraceFilesTest, ErrorsNameTheLineAndWhatWasExpected) {
  EXPECT_THAT(ErrorOf("1.0 4\n0.5 5\n"), HasSubstr("bad:2: at 0.500 s, which is before"));
  EXPECT_THAT(ErrorOf("1.0 4\nnow 5\n"), HasSubstr("bad:2: 'now' is no time"));
  EXPECT_THAT(ErrorOf("nan 5\n"), HasSubstr("bad:1: a time of nan s"));
  EXPECT_THAT(ErrorOf("-1 5\n"), HasSubstr("bad:1: a time of -1 s"));
  EXPECT_THAT(ErrorOf("1e300 5\n"), HasSubstr("expected seconds from 0 to 2^32"));
  EXPECT_THAT(ErrorOf("1.0 18446744073709551616\n"), HasSubstr("expected a number below 2^64"));
  EXPECT_THAT(ErrorOf("1.0 -4\n"), HasSubstr("'-4' is no block id"));
  EXPECT_THAT(ErrorOf("1.0 4x\n"), HasSubstr("'4x' is no block id"));
  EXPECT_THAT(ErrorOf("# block_tokens many\n1 1\n"), HasSubstr("bad:1: 'many'"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("expected at least one request"));
  EXPECT_THAT(ErrorOf("1.0\n2.0\n"), HasSubstr("expected at least one request"));
}

TEST_F(TraceFilesTest, ErrorsOfJsonNameTheLineAndWhatWasExpected) {
  EXPECT_THAT(ErrorOf("{\"timestamp\": 0, \"hash_ids\": [1]\n"),
              HasSubstr("bad:1: expected one JSON"));
  EXPECT_THAT(ErrorOf("{\"timestamp\": 0}\n"), HasSubstr("expected a list \"hash_ids\""));
  EXPECT_THAT(ErrorOf("{\"timestamp\": \"0\", \"hash_ids\": [1]}\n"),
              HasSubstr("number \"timestamp\""));
  EXPECT_THAT(ErrorOf("{\"timestamp\": 1, \"hash_ids\": [-1]}\n"),
              HasSubstr("a -1 in \"hash_ids\""));
  EXPECT_THAT(ErrorOf("{\"timestamp\": 1, \"hash_ids\": [\"7\"]}\n"), HasSubstr("a string in"));
  EXPECT_THAT(ErrorOf("{\"timestamp\": 1, \"hash_ids\": [18446744073709551616]}\n"),
              HasSubstr("below 2^64"));
  EXPECT_THAT(
      ErrorOf("{\"timestamp\": 9, \"hash_ids\": [1]}\n{\"timestamp\": 8, \"hash_ids\": [1]}\n"),
      HasSubstr("bad:2: at 0.008 s"));
  EXPECT_THAT(ErrorOf("{\"timestamp\": 9, \"hash_ids\": [1]}\n{\"chat_id\": 1, \"timestamp\": 9, "
                      "\"hash_ids\": [1]}\n"),
              HasSubstr("bad:2: expected the format of the first line"));
  const std::string deep(100'000, '[');
  EXPECT_THAT(ErrorOf(absl::StrCat("{\"timestamp\": 1, \"hash_ids\": ", deep,
                                   std::string(deep.size(), ']'), "}")),
              HasSubstr("a array in \"hash_ids\""));
}

TEST_F(TraceFilesTest, ErrorsOfSessionsNameWhatWasExpected) {
  EXPECT_THAT(ErrorOf("{\"requests\": []}\n"), HasSubstr("expected a number \"block_size\""));
  EXPECT_THAT(ErrorOf("{\"block_size\": 16.5, \"requests\": []}\n"),
              HasSubstr("expected a \"block_size\""));
  EXPECT_THAT(ErrorOf("{\"block_size\": 64, \"requests\": [{\"t\": 1}]}\n"),
              HasSubstr("\"hash_ids\""));
  EXPECT_THAT(ErrorOf("{\"block_size\": 64, \"requests\": [7]}\n"),
              HasSubstr("expected a number \"t\""));
  EXPECT_THAT(ErrorOf("{\"block_size\": 64, \"requests\": 7}\n"),
              HasSubstr("expected a list \"requests\""));
  EXPECT_THAT(ErrorOf("{\"block_size\": 64, \"hash_id_scope\": \"mine\", \"requests\": []}\n"),
              HasSubstr("\"global\""));
  EXPECT_THAT(ErrorOf(absl::StrCat(Session(""), "\n{\"block_size\": 16, \"requests\": []}\n")),
              HasSubstr("bad:2: blocks of 16 tokens"));
  std::string deep = R"({"block_size": 64, "requests": [)";
  for (int i = 0; i < 100; ++i) deep += R"({"requests": [)";
  for (int i = 0; i < 100; ++i) deep += "]}";
  EXPECT_THAT(ErrorOf(deep + "]}"), HasSubstr("at most 64 deep"));
}

TEST_F(TraceFilesTest, ErrorsOfFilesNameTheFile) {
  EXPECT_EQ(ReadTrace("/no/such/file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadTrace(directory_.path()).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string path = Written("x.json", "no JSON");
  EXPECT_THAT(std::string(ReadTrace(directory_.path()).status().message()), HasSubstr(path));
  std::filesystem::create_directory(directory_.File("y.json"));
  std::filesystem::remove(path);
  EXPECT_EQ(ReadTrace(directory_.path()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace larder::replay
