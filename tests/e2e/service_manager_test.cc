// The daemon under a service manager, whose part the test plays: the daemon's notifications, its
// watchdog, and sockets on which the manager listened before the daemon started.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/frames/file_descriptor.h"
#include "tests/e2e/support/child_engine.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/frozen.h"

namespace larder::e2e {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

FileDescriptor Bind(const std::string& path, int type) {
  FileDescriptor fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// The service manager's notification socket.
class Manager {
 public:
  Manager() : path_(folder_.File("notify")), socket_(Bind(path_, SOCK_DGRAM | SOCK_NONBLOCK)) {}

  // Returns the notifications since the last call.
  std::vector<std::string> Hear() {
    std::vector<std::string> heard;
    char text[4096];
    for (ssize_t n = 0; (n = recv(socket_.get(), text, sizeof text, 0)) > 0;)
      heard.emplace_back(text, static_cast<size_t>(n));
    return heard;
  }
  [[nodiscard]] bool HearsSoon(const std::string& words) {
    return Eventually([&] {
      for (const std::string& said : Hear())
        if (said.find(words) != std::string::npos) return true;
      return false;
    });
  }
  // Fills the socket's queue, so that it accepts no notification until Hear has emptied it.
  void FillQueue() const {
    const FileDescriptor other(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    const auto* to = reinterpret_cast<const sockaddr*>(&address);
    while (sendto(other.get(), "X", 1, 0, to, sizeof address) == 1) {
    }
    EXPECT_EQ(errno, EAGAIN);
  }
  void SetEnvironment(uint64_t watchdog_usec) const {
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
    if (watchdog_usec > 0) setenv("WATCHDOG_USEC", std::to_string(watchdog_usec).c_str(), 1);
  }

 private:
  const TemporarySocketDirectory folder_;
  const std::string path_;
  const FileDescriptor socket_;
};

size_t CountOf(const std::string& words, const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(ServiceManagerTest, IsNotifiedOfReadinessAndOfTheDrain) {
  Manager manager;
  DaemonProcess daemon({"--drain-limit", "40s"}, {.in_child = [&] { manager.SetEnvironment(0); }});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  EXPECT_TRUE(manager.HearsSoon("READY=1"));
  EXPECT_EQ(daemon.Terminate(), 0) << daemon.errors();
  // The daemon asks for more time than the limit of the drain, whatever the unit's TimeoutStopSec
  // is.
  EXPECT_THAT(manager.Hear(),
              Contains(AllOf(HasSubstr("STOPPING=1"), HasSubstr("EXTEND_TIMEOUT_USEC=55000000"))));
}

TEST(ServiceManagerTest, AManagerThatDoesNotListenDelaysNothing) {
  Manager manager;
  manager.FillQueue();
  DaemonProcess daemon({}, {.in_child = [&] { manager.SetEnvironment(200'000); }});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  EXPECT_TRUE(manager.HearsSoon("READY=1")) << "not sent once the queue had capacity again";
  EXPECT_TRUE(manager.HearsSoon("WATCHDOG=1"));
  manager.FillQueue();
  EXPECT_EQ(daemon.Terminate(), 0) << daemon.errors();
}

class WatchdogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.serves()) << daemon_.errors();
    ASSERT_TRUE(manager_.HearsSoon("WATCHDOG=1")) << daemon_.errors();
  }
  // Stops these threads.  The daemon must send no watchdog notification and must log the part that
  // hangs.  Once the threads run again it must send notifications again.
  void ExpectNoticed(const std::string& part,
                     const std::function<bool(const std::string& name)>& which) {
    const std::string words = "parts=" + part;
    {
      const Frozen frozen(daemon_.pid(), which);
      ASSERT_GE(frozen.size(), 1u);
      const auto said = [&] { return CountOf(words, daemon_.errors()); };
      // A slow daemon may have logged the words before it was frozen, and may still have sent one
      // answer after them.
      const size_t early = said();
      ASSERT_TRUE(Eventually([&] { return said() >= early + 2; })) << daemon_.errors();
      static_cast<void>(manager_.Hear());
      const size_t before = said();
      ASSERT_TRUE(Eventually([&] { return said() >= before + 3; })) << daemon_.errors();
      EXPECT_THAT(manager_.Hear(), Not(Contains(HasSubstr("WATCHDOG=1"))));
    }
    EXPECT_TRUE(manager_.HearsSoon("WATCHDOG=1")) << daemon_.errors();
  }

  Manager manager_;
  DaemonProcess daemon_{{}, {.in_child = [this] { manager_.SetEnvironment(200'000); }}};
};

TEST_F(WatchdogTest, HousekeepingThatHangsIsNoticed) {
  ExpectNoticed("housekeeping", [](const std::string& name) { return name == "housekeeper"; });
}
TEST_F(WatchdogTest, ASidebandThatHangsIsNoticed) {
  ExpectNoticed("sideband", [](const std::string& name) { return name == "sideband"; });
}
TEST_F(WatchdogTest, ASessionLoopThatHangsIsNoticed) {
  ExpectNoticed("session_sockets", [](const std::string& name) { return name == "session-loop"; });
}
TEST_F(WatchdogTest, AGrpcServerThatHangsIsNoticed) {
  ExpectNoticed("grpc", [](const std::string& name) {
    for (const char* ours :
         {"signals", "housekeeper", "sideband", "session-loop", "accept", "self-call"})
      if (name == ours) return false;
    return true;
  });
}

// While the accept thread hangs, open connections work and new ones wait.
TEST_F(WatchdogTest, AnAcceptLoopThatHangsIsNoticed) {
  ExpectNoticed("\"accept grpc\"", [](const std::string& name) { return name == "accept"; });
}

class InheritedSocketsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Listen("data.sock", SOCK_STREAM);
    Listen("control.sock", SOCK_STREAM);
    Listen("admin.sock", SOCK_STREAM);
    Listen("sideband.sock", SOCK_SEQPACKET);
  }
  void Listen(const std::string& name, int type) {
    listeners_.push_back(Bind(folder_->File(name), type));
    ASSERT_EQ(listen(listeners_.back().get(), 64), 0);
  }
  [[nodiscard]] DaemonProcess::Options Options(bool wait = true) {
    return {.folder = folder_, .wait = wait, .in_child = [this] {
              // First to numbers that are out of the way of the final ones.
              constexpr int kFirst = 3, kAway = 200;
              const int count = static_cast<int>(listeners_.size());
              for (int i = 0; i < count; ++i)
                dup2(listeners_[static_cast<size_t>(i)].get(), kAway + i);
              for (int i = 0; i < count; ++i) dup2(kAway + i, kFirst + i);
              for (int i = 0; i < count; ++i) close(kAway + i);
              setenv("LISTEN_FDS", std::to_string(count).c_str(), 1);
              setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
            }};
  }
  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  std::vector<FileDescriptor> listeners_;
};

TEST_F(InheritedSocketsTest, AClientThatConnectsBeforeTheDaemonStartsIsServed) {
  DaemonProcess first({}, Options(/*wait=*/false));
  {
    ChildEngine early(first, "mapped", "put", 0);  // the daemon may not have started yet
    EXPECT_EQ(early.Hear(), "done") << first.errors();
  }
  ASSERT_TRUE(Eventually([&] { return first.serves(); })) << first.errors();
  EXPECT_EQ(first.Stats().version().empty(), false);
  EXPECT_EQ(first.Terminate(), 0) << first.errors();

  // The socket files belong to the manager, so they stay and serve the next daemon.
  for (const char* name : {"data.sock", "control.sock", "admin.sock", "sideband.sock"})
    EXPECT_TRUE(std::filesystem::is_socket(folder_->File(name))) << name;
  DaemonProcess second({}, Options());
  ASSERT_TRUE(second.serves()) << second.errors();
  ChildEngine late(second, "staged", "put", 0);
  EXPECT_EQ(late.Hear(), "done") << second.errors();
  second.Kill9();
  DaemonProcess third({}, Options());
  EXPECT_TRUE(third.serves()) << third.errors();
}

TEST_F(InheritedSocketsTest, ASocketOfAnotherFolderIsRefused) {
  const TemporarySocketDirectory elsewhere;
  DaemonProcess daemon({"--socket-dir", elsewhere.path()}, Options(/*wait=*/false));
  EXPECT_EQ(daemon.Wait(), 3);
  EXPECT_THAT(daemon.errors(),
              AllOf(HasSubstr("part=sockets"), HasSubstr(folder_->File("data.sock")),
                    HasSubstr("the same directory")));
}

}  // namespace
}  // namespace larder::e2e
