#include "server/sessions/session_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>

#include "client/local/sideband_client.h"

namespace larder {
namespace {

std::unique_ptr<SessionPage> MakePage() {
  auto page = SessionPage::Create();
  EXPECT_TRUE(page.ok()) << page.status();
  return *std::move(page);
}

MappedSessionPage ClientView(const SessionPage& page) {
  const FileDescriptor fd(*page.OpenDescriptor());
  auto mapping = SharedMapping::Map(fd.get(), SessionPage::kBytes, /*writable=*/false);
  EXPECT_TRUE(mapping.ok()) << mapping.status();
  return MappedSessionPage(*std::move(mapping));
}

uint32_t WordsUsed(const SessionPage& page) {
  uint32_t used = 0;
  for (uint32_t i = 0; i < SessionPage::kWords; ++i) used += page.Load(i) != 0 ? 1 : 0;
  return used;
}

// Returns how many more words can be allocated; all are in use afterwards.
uint32_t AllocateAll(SessionPage& page) {
  std::set<uint32_t> words;
  for (uint64_t value = 1; const auto word = page.AllocateWord(value); ++value) words.insert(*word);
  return static_cast<uint32_t>(words.size());
}

TEST(SessionPageTest, TheClientSeesAWordWhileItIsHeld) {
  const auto page = MakePage();
  const MappedSessionPage client = ClientView(*page);
  EXPECT_EQ(client.words(), SessionPage::kWords);
  const uint32_t word = *page->AllocateWord(7);
  EXPECT_TRUE(client.Holds(word, 7));
  EXPECT_FALSE(client.Holds(word, 8));
  EXPECT_FALSE(client.Holds(SessionPage::kWords, 0));
  page->Set(word, 9);
  EXPECT_FALSE(client.Holds(word, 7));
  EXPECT_TRUE(client.Holds(word, 9));
  EXPECT_TRUE(page->Clear(word, 9));
  EXPECT_FALSE(client.Holds(word, 9));
  EXPECT_EQ(WordsUsed(*page), 0u);
}

TEST(SessionPageTest, ClearOfAnEndedPromiseLeavesTheNextOneAlone) {
  const auto page = MakePage();
  const uint32_t word = *page->AllocateWord(1);
  EXPECT_TRUE(page->Clear(word, 1));  // revoked
  ASSERT_EQ(page->AllocateWord(2), word);
  EXPECT_FALSE(page->Clear(word, 1));  // the client releases it later
  EXPECT_EQ(page->Load(word), 2u);
  EXPECT_EQ(WordsUsed(*page), 1u);
}

TEST(SessionPageTest, AllocatesEachWordOnceUntilNoneIsFree) {
  const auto page = MakePage();
  std::set<uint32_t> words;
  for (uint32_t i = 0; i < SessionPage::kWords; ++i)
    words.insert(page->AllocateWord(i + 1).value());
  EXPECT_EQ(words.size(), SessionPage::kWords);
  EXPECT_EQ(*words.rbegin(), SessionPage::kWords - 1);
  EXPECT_FALSE(page->AllocateWord(1));
  page->ClearAll();
  EXPECT_EQ(WordsUsed(*page), 0u);
  EXPECT_EQ(AllocateAll(*page), SessionPage::kWords) << "all are free again";
}

TEST(SessionPageTest, OnlyTheDaemonCanWrite) {
  const auto page = MakePage();
  const FileDescriptor fd(*page->OpenDescriptor());
  EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_TRUE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  // Not even by the owner of the memfd, which can reopen it for writing.
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  const FileDescriptor again(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(again);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
  EXPECT_LT(pwrite(again.get(), "x", 1, 0), 0);
  EXPECT_NE(ftruncate(again.get(), 0), 0);
}

TEST(SessionPageTest, AClientsViewOutlivesThePage) {
  auto page = MakePage();
  const MappedSessionPage client = ClientView(*page);
  const uint32_t word = *page->AllocateWord(3);
  page.reset();
  EXPECT_TRUE(client.Holds(word, 3));  // the reason why an owner calls ClearAll first
}

TEST(SessionPageTest, ThreadsAllocateAndClear) {
  const auto page = MakePage();
  const MappedSessionPage client = ClientView(*page);
  const auto work = [&](uint64_t first) {
    for (uint64_t id = first; id < first + 2'000; ++id) {
      const auto word = page->AllocateWord(id);
      ASSERT_TRUE(word);
      EXPECT_TRUE(client.Holds(*word, id));
      EXPECT_TRUE(page->Clear(*word, id));
      EXPECT_FALSE(client.Holds(*word, id));
    }
  };
  std::thread one(work, 1);
  std::thread two(work, 1'000'000);
  one.join();
  two.join();
  EXPECT_EQ(WordsUsed(*page), 0u);
  EXPECT_EQ(AllocateAll(*page), SessionPage::kWords) << "each was given back";
}

TEST(SessionPageDeathTest, TheValueZeroIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork does not get the page (MADV_DONTFORK)
  const auto page = MakePage();
  EXPECT_DEATH(static_cast<void>(page->AllocateWord(0)), "invariant broken");
  EXPECT_DEATH(page->Set(0, 5), "invariant broken");
}

}  // namespace
}  // namespace larder
