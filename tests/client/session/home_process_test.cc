// Whether an object knows that a forked child has it.
#include "client/session/home_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace larder {
namespace {

// Runs `question` in a forked child.
template <class Question>
bool InChild(Question question) {
  const pid_t child = fork();
  if (child == 0) _exit(question() ? 1 : 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST(HomeProcess, OnlyAChildHasLeft) {
  const HomeProcess home;
  EXPECT_FALSE(home.left());
  EXPECT_TRUE(InChild([&] { return home.left(); }));
  EXPECT_FALSE(home.left());
}

TEST(HomeProcess, AChildsOwnAreAtHome) {
  EXPECT_FALSE(InChild([] { return HomeProcess().left(); }));
}

TEST(HomeProcess, AGrandchildHasLeftToo) {
  const HomeProcess home;
  EXPECT_TRUE(InChild([&] { return InChild([&] { return home.left(); }); }));
}

}  // namespace
}  // namespace larder
