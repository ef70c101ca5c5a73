// Whether an object detects that it is used in a forked child.
#include "client/session/fork_guard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace larder {
namespace {

// Calls `question` in a forked child.
template <class Question>
bool InChild(Question question) {
  const pid_t child = fork();
  if (child == 0) _exit(question() ? 1 : 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST(ForkGuard, DetectsAForkedChild) {
  const ForkGuard home;
  EXPECT_FALSE(home.left());
  EXPECT_TRUE(InChild([&] { return home.left(); }));
  EXPECT_FALSE(home.left());
}

TEST(ForkGuard, AGuardMadeInAChildBelongsToIt) {
  EXPECT_FALSE(InChild([] { return ForkGuard().left(); }));
}

TEST(ForkGuard, DetectsAGrandchild) {
  const ForkGuard home;
  EXPECT_TRUE(InChild([&] { return InChild([&] { return home.left(); }); }));
}

}  // namespace
}  // namespace larder
