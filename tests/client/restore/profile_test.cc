// The file of a profile: a written profile is read back, and an error names the line.
#include "client/restore/costs/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

Profile Example() {
  return {.model = "smol \"135M\"",
          .layers = 30,
          .compute = {1e-3, 2.5e-4, 3e-9},
          .layer_shares = std::vector<double>(30, 0.5),
          .channels = {{"pool", 1.5e10}, {"disk", 2e9}},
          .crossover_tokens = 512,
          .doubt = 0.05};
}

TEST(Profile, AWrittenProfileIsReadBack) {
  const Profile wrote = Example();
  const auto read = ParseProfile(FormatProfile(wrote), "p.toml");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(FormatProfile(*read), FormatProfile(wrote));
  EXPECT_EQ(read->model, wrote.model);
  EXPECT_EQ(read->layer_shares.size(), 30u);
  EXPECT_EQ(read->channels[1].name, "disk");
}

TEST(Profile, ReadsAndWritesFiles) {
  TemporaryDirectory folder;
  const std::string path = folder.path() + "/p.toml";
  EXPECT_EQ(ReadProfile(path).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteProfile(Example(), path).ok());
  ASSERT_TRUE(ReadProfile(path).ok());
  EXPECT_FALSE(WriteProfile(Example(), folder.path() + "/none/p.toml").ok());
}

struct Wrong {
  const char* from;
  const char* to;
  const char* says;
};

TEST(Profile, ErrorsNameTheLineAndTheKey) {
  const std::string good = FormatProfile(Example());
  const Wrong wrongs[] = {
      {"layers = 30", "layers = 129", "p.toml:4: layers must be a number from 1 to 128"},
      {"layers = 30", "layers = 31", "for each of 31 layers"},
      {"fixed_s", "fixed_ms", "fixed_s is missing"},
      {"linear_s = 0.00025", "linear_s = -1", "linear_s must be"},
      {"[compute]", "[compote]", "there is no [compute]"},
      {"doubt", "doubts", "unknown key 'doubts'"},
      {"name = \"pool\"", "name = 7", "name must be a short text"},
      {"bytes_per_s = 1.5e+10", "bytes_per_s = 0", "bytes_per_s must be"},
      {"[engine]", "[engine", "p.toml:2"},
      {"[[channel]]\nname = \"pool\"", "[[chanel]]\nname = \"pool\"", "unknown key 'chanel'"},
  };
  for (const Wrong& wrong : wrongs) {
    std::string text = good;
    const size_t at = text.find(wrong.from);
    ASSERT_NE(at, std::string::npos) << wrong.from;
    text.replace(at, std::string(wrong.from).size(), wrong.to);
    const auto read = ParseProfile(text, "p.toml");
    ASSERT_FALSE(read.ok()) << wrong.to;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(wrong.says));
  }
}

}  // namespace
}  // namespace larder
