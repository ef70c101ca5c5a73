// Runs larderctl dump as an operator does: arguments in, output and exit status out.
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

constexpr size_t kHeaderBytes = 256;  // of the golden record
constexpr size_t kRecordBytes = 481;

struct Outcome {
  int exit_code = -1;
  std::string out;
};

Outcome Dump(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe =
      ::popen((std::string(LARDERCTL) + " dump " + arguments + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    outcome.out.append(buffer, n);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

std::string Golden() {
  std::ifstream file(std::string(LARDER_GOLDEN_DIR) + "/record_v1.bin", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Write(const std::string& bytes) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  static const TemporaryDirectory directory;
  const std::string path = directory.path() + "/" + test->name();
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

nlohmann::json DumpJson(const std::string& bytes, int want_exit_code) {
  const Outcome outcome = Dump("-o json " + Write(bytes));
  EXPECT_EQ(outcome.exit_code, want_exit_code);
  return nlohmann::json::parse(outcome.out);
}

TEST(RecordDump, WholeRecord) {
  ASSERT_EQ(Golden().size(), kRecordBytes);
  const auto records = DumpJson(Golden(), 0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].at("digest"), "d61aa64875c51c6984d7fb7d2ab84f85");
  EXPECT_EQ(records[0].at("segments").size(), 3u);
  const Outcome table = Dump(Write(Golden()));
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_NE(table.out.find("llama.cpp/rows/1"), std::string::npos);
}

TEST(RecordDump, DamagedSegmentIsNamedAndTheRestIsShown) {
  std::string bytes = Golden();
  bytes[kHeaderBytes + 130] ^= 1;
  const auto records = DumpJson(bytes, 1);
  EXPECT_EQ(records[0].at("ok"), false);
  const char* const want[] = {"ok", "damaged", "ok"};
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(records[0].at("segments")[i].at("state"), want[i]);
}

TEST(RecordDump, ATruncatedRecordIsReported) {
  const auto records = DumpJson(Golden().substr(0, kRecordBytes - 1), 1);
  EXPECT_EQ(records[0].at("segments")[2].at("state"), "cut short");
  EXPECT_TRUE(DumpJson(Golden().substr(0, kHeaderBytes - 1), 1)[0].contains("error"));
  EXPECT_TRUE(DumpJson("", 1)[0].contains("error"));
}

TEST(RecordDump, SeveralRecordsInOneFile) {
  std::string bytes = Golden();
  bytes.resize(512);  // records begin at multiples of 64
  bytes += Golden();
  const auto records = DumpJson(bytes, 0);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].at("file_offset"), 512);
  const auto with_garbage = DumpJson(bytes + std::string(64, 'x'), 1);
  ASSERT_EQ(with_garbage.size(), 3u);
  EXPECT_EQ(with_garbage[1].at("ok"), true);
  EXPECT_TRUE(with_garbage[2].contains("error"));
}

TEST(RecordDump, UsageAndUnreadableFiles) {
  EXPECT_EQ(Dump("--help").exit_code, 0);
  EXPECT_EQ(Dump("").exit_code, 2);
  EXPECT_EQ(Dump("-o yaml " + Write(Golden())).exit_code, 2);
  EXPECT_EQ(Dump("/nonexistent/file").exit_code, 2);
  EXPECT_EQ(Dump("/").exit_code, 2);
  EXPECT_EQ(Dump("/dev/null").exit_code, 2);
}

// ---- Data files of the disk tier: records begin at pages, with free pages between them.

constexpr size_t kPage = 4096;

std::string Paged(std::string bytes) {
  bytes.resize((bytes.size() + kPage - 1) / kPage * kPage);
  return bytes;
}

// The golden record as it lies in such a file: one page of header, one page of payload.
std::string PagedRecord() {
  return Paged(Golden().substr(0, kHeaderBytes)) + Paged(Golden().substr(kHeaderBytes));
}

std::string WriteKv(const std::string& bytes) {
  const std::string path = Write("") + ".kv";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

nlohmann::json DumpKv(const std::string& bytes, int want_exit_code) {
  const Outcome outcome = Dump("-o json " + WriteKv(bytes));
  EXPECT_EQ(outcome.exit_code, want_exit_code);
  return nlohmann::json::parse(outcome.out);
}

TEST(RecordDumpKv, RecordsAndFreePages) {
  const std::string record = PagedRecord();
  const auto records =
      DumpKv(std::string(kPage, 'x') + record + std::string(3 * kPage, 'y') + record, 0);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].at("file_offset"), kPage);
  EXPECT_EQ(records[1].at("file_offset"), kPage + record.size() + 3 * kPage);
  EXPECT_TRUE(records[1].at("ok"));
}

// A dump cannot tell whether such a record is damaged or was erased.
TEST(RecordDumpKv, AnIncompleteRecordIsReported) {
  std::string file = PagedRecord() + PagedRecord();
  file[kPage + 10] ^= 1;
  const auto records = DumpKv(file, 1);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_FALSE(records[0].at("ok"));
  EXPECT_TRUE(records[1].at("ok"));
  EXPECT_NE(Dump(WriteKv(file)).out.find("record at byte 0, not whole or erased"),
            std::string::npos);
}

// An erased record of two pages, and a record in use that begins on its second page.
TEST(RecordDumpKv, ARecordInsideAnErasedOneIsFound) {
  const auto records = DumpKv(PagedRecord().substr(0, kPage) + PagedRecord(), 1);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].at("file_offset"), 0);
  EXPECT_FALSE(records[0].at("ok"));
  EXPECT_EQ(records[1].at("file_offset"), kPage);
  EXPECT_TRUE(records[1].at("ok"));
}

// Such a page might as well be free, as --help says.
TEST(RecordDumpKv, ARecordWithADamagedHeaderIsNotFound) {
  std::string file = PagedRecord() + PagedRecord();
  file[10] ^= 1;
  const auto records = DumpKv(file, 0);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].at("file_offset"), file.size() / 2);
  EXPECT_NE(Dump("--help").out.find("with a damaged header is"), std::string::npos);
}

}  // namespace
}  // namespace larder
