// Words, tables and quantities for human readers.
#include "storage/text.h"

#include "client/cli/pages/option_values.h"
#include "client/cli/shell/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace larder::cli {
namespace {

TEST(Text, Printable) {
  EXPECT_EQ(Printable("a \"b\"\x1b[31m\n\xc3\xa9\x7f"), "a \"b\"\\x1b[31m\\x0a\\xc3\\xa9\\x7f");
}

TEST(Text, WrapsAtTheWidth) {
  EXPECT_EQ(Wrap("aa bb cc dd", 5), "aa bb\ncc dd\n");
  EXPECT_EQ(Wrap("aa bb cc", 7, 3, "x: "), "x: aa\n   bb\n   cc\n");
  EXPECT_EQ(Wrap("one\n\ntwo", 80), "one\n\ntwo\n");
  EXPECT_EQ(Wrap("aaaaaaaaaaaa b", 5, 1), "aaaaa\n aaaa\n aaa\n b\n");
  EXPECT_EQ(Wrap("as wide as it is", 0), "as wide as it is\n");
  EXPECT_EQ(Wrap("", 80, 2, "  "), "\n");
  // The width is smaller than the indent: whole words are printed rather than none.
  EXPECT_EQ(Wrap("aaaa bbbb", 3, 6, "      "), "      aaaa\n      bbbb\n");
}

TEST(Text, Quantities) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(1024 * 1024 - 1), "1 MiB");
  EXPECT_EQ(FormatBytes(1.8e19), "15.6 EiB");
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1'234'567), "1,234,567");
  EXPECT_EQ(FormatSeconds(0.0000121), "12 us");
  EXPECT_EQ(FormatSeconds(0.25), "250 ms");
  EXPECT_EQ(FormatSeconds(185), "3 min 5 s");
  EXPECT_EQ(FormatSeconds(1.0 / 0.0), "-");
  EXPECT_EQ(FormatShare(1, 8), "12.5 %");
  EXPECT_EQ(FormatShare(0, 0), "-");
}

TEST(Text, Durations) {
  using std::chrono::milliseconds;
  EXPECT_EQ(ParseDuration("500ms").value(), milliseconds(500));
  EXPECT_EQ(ParseDuration("2min").value(), milliseconds(120'000));
  EXPECT_EQ(ParseDuration("1.5h").value(), milliseconds(5'400'000));
  EXPECT_EQ(ParseDuration("1us").value(), milliseconds(1));
  for (const char* const wrong : {"", "30", "0s", "0", "-1s", "inf", "9000h", "1 s", "s"})
    EXPECT_FALSE(ParseDuration(wrong).ok()) << wrong;
}

TEST(Text, Sizes) {
  EXPECT_EQ(ParseBytes("64MiB").value(), 64u << 20);
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  for (const char* const wrong : {"", "MiB", "8G", "0", "-1", "99999999TiB", "1.5GiB"})
    EXPECT_FALSE(ParseBytes(wrong).ok()) << wrong;
}

TEST(Text, NearestNameFindsTypingErrors) {
  constexpr std::string_view kNames[] = {"status", "top", "unpin", "pin", "completion"};
  EXPECT_EQ(NearestName("stauts", kNames), "status");
  EXPECT_EQ(NearestName("pni", kNames), "pin");
  EXPECT_EQ(NearestName("comp", kNames), "completion");
  EXPECT_EQ(NearestName("xyzzy", kNames), "");
  EXPECT_EQ(NearestName(std::string(1000, 'x'), kNames), "");
}

TEST(Table, CutsOnlyColumnsThatMayBeCut) {
  Table table({{"NAME", Table::Kind::kMayBeCut}, {"N", Table::Kind::kNumber}, {"STATE"}});
  table.Add({"a-long-long-name", "7", "ok"});
  table.Add({"b", "1,000", "gone"});
  EXPECT_EQ(table.Format(0),
            "NAME                  N  STATE\n"
            "a-long-long-name      7  ok\n"
            "b                 1,000  gone\n");
  EXPECT_EQ(table.Format(24),
            "NAME            N  STATE\n"
            "a-long-l..      7  ok\n"
            "b           1,000  gone\n");
  // No column can be cut further, so the line itself is cut.
  EXPECT_EQ(table.Format(12).substr(0, 13), "NAME      ..\n");
}

TEST(Table, FactsWrapBelowTheirValue) {
  EXPECT_EQ(FormatFacts({{"a", "one two"}, {"bcd", "x"}}, 9), "a    one\n     two\nbcd  x\n");
}

}  // namespace
}  // namespace larder::cli
