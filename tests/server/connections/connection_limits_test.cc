// How many connections each uid and process may have, how descriptors are divided, and what happens
// when a socket file is removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/connections/connection_shares.h"
#include "server/connections/descriptor_budget.h"
#include "server/connections/listening_socket.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

TEST(ConnectionSharesTest, EachShareLimitsConnectionsAndIsReleased) {
  ConnectionShares shares({.all = 4, .per_uid = 3, .per_process = 2});
  const SocketPeer one{.uid = 1, .pid = 10}, sibling{.uid = 1, .pid = 11};
  const SocketPeer other{.uid = 2, .pid = 20}, third{.uid = 3, .pid = 30};
  EXPECT_EQ(shares.Take(one), ShareRefusal::kNone);
  EXPECT_EQ(shares.Take(one), ShareRefusal::kNone);
  EXPECT_EQ(shares.Take(one), ShareRefusal::kProcess);
  EXPECT_EQ(shares.Take(sibling), ShareRefusal::kNone);
  EXPECT_EQ(shares.Take(sibling), ShareRefusal::kUid);
  EXPECT_EQ(shares.Take(other), ShareRefusal::kNone);
  EXPECT_EQ(shares.Take(third), ShareRefusal::kAll);
  shares.Give(one);
  EXPECT_EQ(shares.Take(third), ShareRefusal::kNone);
  EXPECT_EQ(shares.count(), 4u);
  EXPECT_THAT(shares.Explain(ShareRefusal::kUid, "doors"), HasSubstr("a uid has at most 3 doors"));
}

// Processes of another PID namespace have no visible pid, so they cannot be told apart.
TEST(ConnectionSharesTest, ProcessesOfAnotherPidNamespaceShareTheLimitOfTheirUid) {
  ConnectionShares shares({.all = 9, .per_uid = 3, .per_process = 1});
  const SocketPeer unseen{.uid = 1, .pid = 0};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(shares.Take(unseen), ShareRefusal::kNone);
  EXPECT_EQ(shares.Take(unseen), ShareRefusal::kUid);
}

// For every limit, either all shares together leave the daemon the descriptors that it keeps for
// itself, or it does not start.
TEST(DescriptorBudgetTest, TheSumOfAllSharesFits) {
  for (const size_t limit : {128, 200, 256, 512, 1024, 4096, 20'000, 1'048'576}) {
    for (const size_t in_use : {30, 60, 200}) {
      SCOPED_TRACE(std::to_string(limit) + " of which " + std::to_string(in_use));
      const auto budget =
          ShareOutDescriptors({.limit = limit, .in_use = in_use, .sessions_max = 1024});
      if (!budget.ok()) {
        EXPECT_LT(limit, in_use + 160);
        EXPECT_THAT(std::string(budget.status().message()), HasSubstr("LimitNOFILE"));
        continue;
      }
      EXPECT_LE(budget->data.all + budget->admin.all + 2 * budget->sideband.all +
                    2 * budget->sessions_max + in_use + DescriptorBudget::kKeptMin,
                limit);
      for (const auto& shares : {budget->data, budget->admin, budget->sideband}) {
        EXPECT_GE(shares.per_process, 1u);
        EXPECT_LE(shares.per_process, shares.per_uid);
        EXPECT_LE(shares.per_uid, shares.all);
      }
      EXPECT_LT(budget->data.per_uid, budget->data.all) << "another uid must still get connections";
      EXPECT_GE(budget->sessions_max, 1u);
    }
  }
}

TEST(DescriptorBudgetTest, FiftyProcessesDoNotFillTheShareOfTheirUid) {
  const auto budget = ShareOutDescriptors({.limit = 20'000, .in_use = 60, .sessions_max = 1024});
  ASSERT_TRUE(budget.ok());
  EXPECT_LT(50 * budget->data.per_process, budget->data.per_uid);
  EXPECT_LT(50 * budget->sideband.per_process, budget->sideband.per_uid);
  EXPECT_EQ(budget->sessions_max, 1024u);
}

// An operator whose program has more clients sets one option, not two.
TEST(DescriptorBudgetTest, ConnectionsPerProcessSetsDataAndSideband) {
  const auto budget = ShareOutDescriptors(
      {.limit = 20'000, .in_use = 60, .sessions_max = 1024, .connections_per_process = 40});
  ASSERT_TRUE(budget.ok());
  EXPECT_EQ(budget->data.per_process, 40u);
  EXPECT_EQ(budget->sideband.per_process, 40u);
}

TEST(DescriptorBudgetTest, RefusalsNameTheOptionThatRaisesTheLimit) {
  const auto budget = ShareOutDescriptors({.limit = 20'000, .in_use = 60, .sessions_max = 1024});
  ASSERT_TRUE(budget.ok());
  for (const auto& limits : {budget->data, budget->sideband}) {
    const ConnectionShares shares(limits);
    EXPECT_THAT(shares.Explain(ShareRefusal::kProcess, "doors"),
                HasSubstr("close one, or raise --connections-per-process"));
    EXPECT_THAT(shares.Explain(ShareRefusal::kUid, "doors"), HasSubstr("LimitNOFILE"));
    EXPECT_THAT(shares.Explain(ShareRefusal::kAll, "doors"), HasSubstr("LimitNOFILE"));
  }
  EXPECT_THAT(ConnectionShares(budget->sideband).Explain(ShareRefusal::kAll, "doors"),
              HasSubstr("--sessions-max"));
  EXPECT_THAT(ConnectionShares(budget->admin).Explain(ShareRefusal::kProcess, "doors"),
              ::testing::EndsWith("; close one"))
      << "no option raises this limit";
}

class ListeningSocketTest : public ::testing::Test {
 protected:
  [[nodiscard]] static bool Listens(const std::string& path) {
    const FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  [[nodiscard]] mode_t Mode() const {
    struct stat st {};
    EXPECT_EQ(stat(path_.c_str(), &st), 0);
    return st.st_mode & 0777;
  }
  const TemporaryDirectory dir_;
  const std::string path_ = dir_.path() + "/data.sock";
  const ListeningSocket::Options options_{.path = path_, .type = SOCK_STREAM, .mode = 0640};
};

TEST_F(ListeningSocketTest, CreatesAndRemovesItsFile) {
  {
    const auto listening = ListeningSocket::Open(options_);
    ASSERT_TRUE(listening.ok()) << listening.status();
    EXPECT_TRUE(Listens(path_));
    EXPECT_EQ(Mode(), mode_t{0640});
    EXPECT_TRUE((*listening)->InPlace());
    EXPECT_FALSE(ListeningSocket::Open(options_).ok())
        << "another socket already listens on this path";
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ListeningSocketTest, ReopensWhenItsFileIsGoneOrItWasShutDown) {
  const auto listening = ListeningSocket::Open(options_);
  ASSERT_TRUE(listening.ok()) << listening.status();
  std::filesystem::remove(path_);
  EXPECT_FALSE((*listening)->InPlace());
  ASSERT_TRUE((*listening)->Reopen().ok());
  EXPECT_TRUE(Listens(path_));
  ASSERT_EQ(shutdown((*listening)->get(), SHUT_RDWR), 0);
  EXPECT_FALSE(Listens(path_));
  ASSERT_TRUE((*listening)->Reopen().ok());
  EXPECT_TRUE(Listens(path_));
  EXPECT_EQ(Mode(), mode_t{0640});
}

TEST_F(ListeningSocketTest, NeverReplacesAFileOfAnotherProgram) {
  const auto listening = ListeningSocket::Open(options_);
  ASSERT_TRUE(listening.ok()) << listening.status();
  std::filesystem::remove(path_);
  std::ofstream(path_) << "precious";
  EXPECT_FALSE((*listening)->InPlace());
  EXPECT_FALSE((*listening)->Reopen().ok());
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

TEST_F(ListeningSocketTest, AListenerThatWasHandedOverKeepsItsFile) {
  {
    const auto managers = ListeningSocket::Open(options_);
    ASSERT_TRUE(managers.ok());
    ListeningSocket::Options handed = options_;
    handed.handed_over = (*managers)->get();
    handed.mode = 0600;
    {
      const auto ours = ListeningSocket::Open(handed);
      ASSERT_TRUE(ours.ok()) << ours.status();
      EXPECT_FALSE((*ours)->refuses_rights())
          << "the socket accepted connections before it was handed over";
    }
    EXPECT_TRUE(Listens(path_));
    EXPECT_EQ(Mode(), mode_t{0640});
  }
}

}  // namespace
}  // namespace larder
