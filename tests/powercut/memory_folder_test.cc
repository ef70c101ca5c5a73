// A killed test leaves a folder in memory, and the next test removes it.
#include "tests/powercut/memory_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>

#include <gtest/gtest.h>

namespace larder::powercut {
namespace {

namespace fs = std::filesystem;

TEST(MemoryFolder, AFolderOfAKilledOwnerIsRemovedByTheNext) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t owner = fork();
  ASSERT_GE(owner, 0);
  if (owner == 0) {
    const MemoryFolder folder;
    std::ofstream(folder.path() + "/image") << std::string(1 << 20, 'x');
    const std::string& path = folder.path();
    if (write(ends[1], path.data(), path.size()) != static_cast<ssize_t>(path.size())) _exit(1);
    for (;;) pause();
  }
  std::array<char, 4096> path{};
  const ssize_t bytes = read(ends[0], path.data(), path.size() - 1);
  const fs::path left(path.data());
  {
    const MemoryFolder another;
    EXPECT_GT(bytes, 0);
    EXPECT_TRUE(fs::exists(left / "image")) << "the folder of a live owner must stay";
  }
  kill(owner, SIGKILL);
  EXPECT_EQ(waitpid(owner, nullptr, 0), owner);
  close(ends[0]);
  close(ends[1]);
  ASSERT_TRUE(fs::exists(left / "image"));
  const MemoryFolder next;
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(next.path()));
}

}  // namespace
}  // namespace larder::powercut
