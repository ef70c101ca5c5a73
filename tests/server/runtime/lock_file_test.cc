// One daemon per directory, and the daemon removes no file except the socket of a dead daemon.
#include "server/runtime/lock_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "server/connections/listening_socket.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A bound socket; its file stays after the object is destroyed, as after a crash.
class BoundSocket {
 public:
  BoundSocket(const std::string& path, int type, bool listens)
      : fd_(socket(AF_UNIX, type | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (listens) {
      EXPECT_EQ(listen(fd_, 0), 0);
    }
  }
  ~BoundSocket() { close(fd_); }

 private:
  const int fd_;
};

class LockFileTest : public ::testing::Test {
 protected:
  const TemporarySocketDirectory directory_;
  const std::string dir_ = directory_.path();
};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST_F(LockFileTest, ASecondDaemonIsToldThePidOfTheFirstAndWhatToDo) {
  auto first = LockFile::Acquire(dir_);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = LockFile::Acquire(dir_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Message(second.status()), "another larderd (pid " + std::to_string(getpid()) +
                                          ") serves " + dir_ + ": stop it or choose --socket-dir");
  first->reset();
  EXPECT_TRUE(LockFile::Acquire(dir_).ok());
}

// For a child: writes to a pipe whether it has the lock, and keeps what it has until it is killed.
[[noreturn]] void TellAndStay(int pipe, bool has_lock) {
  const char told = has_lock ? 1 : 0;
  if (write(pipe, &told, 1) != 1) _exit(1);
  pause();
  _exit(0);
}

// Waits for what a child tells.
bool IsTold(int pipe) {
  char told = 0;
  return read(pipe, &told, 1) == 1 && told == 1;
}

TEST_F(LockFileTest, AKilledDaemonHoldsNothing) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = LockFile::Acquire(dir_);
    TellAndStay(ready[1], lock.ok());
  }
  ASSERT_TRUE(IsTold(ready[0]));
  EXPECT_THAT(Message(LockFile::Acquire(dir_).status()),
              HasSubstr("(pid " + std::to_string(child) + ")"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(LockFile::Acquire(dir_).ok());
  close(ready[0]);
  close(ready[1]);
}

// A killed daemon has the lock until its memory is free.  Here it keeps it for another reason: the
// process that holds the descriptor is a zombie, and a child of it has the descriptor, too.
TEST_F(LockFileTest, WaitsForADaemonThatExits) {
  int ready[2], freed[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(freed), 0);
  const pid_t daemon = fork();
  if (daemon == 0) {
    const auto lock = LockFile::Acquire(dir_);
    const pid_t child = fork();
    close(freed[1]);
    if (child == 0) {
      char byte = 0;
      (void)!read(freed[0], &byte, 1);  // returns when the test closes its end
      _exit(0);
    }
    TellAndStay(ready[1], lock.ok());
  }
  ASSERT_TRUE(IsTold(ready[0]));
  EXPECT_EQ(LockFile::Acquire(dir_).status().code(), absl::StatusCode::kFailedPrecondition)
      << "the daemon runs";
  kill(daemon, SIGKILL);
  std::string told;
  const auto waits = [&](const std::string& what) {
    told += what;
    close(freed[1]);
  };
  EXPECT_TRUE(LockFile::Acquire(dir_, waits).ok());
  EXPECT_EQ(told, "another larderd (pid " + std::to_string(daemon) +
                      ") still has the lock; waiting for it");
  waitpid(daemon, nullptr, 0);
  close(freed[0]);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(LockFileTest, MakesTheDirectoryOrSaysWhyItCannot) {
  EXPECT_TRUE(LockFile::Acquire(dir_ + "/new").ok());
  EXPECT_THAT(Message(LockFile::Acquire(dir_ + "/no/such").status()), HasSubstr("cannot create"));
  std::ofstream(dir_ + "/file") << "x";
  EXPECT_THAT(Message(LockFile::Acquire(dir_ + "/file").status()), HasSubstr("is not a directory"));
}

TEST_F(LockFileTest, RefusesAWorldWritableDirectoryWithoutTheStickyBit) {
  ASSERT_EQ(chmod(dir_.c_str(), 0777), 0);
  EXPECT_THAT(Message(LockFile::Acquire(dir_).status()), HasSubstr("chmod o-w"));
  ASSERT_EQ(chmod(dir_.c_str(), 01777), 0);
  EXPECT_TRUE(LockFile::Acquire(dir_).ok());
}

TEST_F(LockFileTest, DoesNotFollowALinkToAnotherFile) {
  std::ofstream(dir_ + "/precious") << "bytes";
  fs::create_symlink(dir_ + "/precious", dir_ + "/larderd.lock");
  EXPECT_FALSE(LockFile::Acquire(dir_).ok());
  EXPECT_EQ(fs::file_size(dir_ + "/precious"), 5u);
}

TEST_F(LockFileTest, NoOtherUserMayOpenTheFile) {
  const std::string path = dir_ + "/larderd.lock";
  const auto mode = [&] {
    struct stat st {};
    EXPECT_EQ(stat(path.c_str(), &st), 0);
    return st.st_mode & 07777;
  };
  const mode_t before = umask(0);
  EXPECT_TRUE(LockFile::Acquire(dir_).ok());
  umask(before);
  EXPECT_EQ(mode(), mode_t{0600});
  // Earlier versions of the daemon left the file with this mode.
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_TRUE(LockFile::Acquire(dir_).ok());
  EXPECT_EQ(mode(), mode_t{0600});
}

TEST_F(LockFileTest, AFileOfAnotherUserIsNotTrusted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner of a file";
  const std::string path = dir_ + "/larderd.lock";
  std::ofstream(path).close();
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  EXPECT_THAT(Message(LockFile::Acquire(dir_).status()), HasSubstr("belongs to uid 65534"));
  // In that user's own directory, the file belongs to that user's daemon, which runs there at other
  // times.
  ASSERT_EQ(chown(dir_.c_str(), 65534, 65534), 0);
  EXPECT_TRUE(LockFile::Acquire(dir_).ok());
}

TEST_F(LockFileTest, RemovesOnlySocketsWithoutAListener) {
  const auto lock = LockFile::Acquire(dir_);
  ASSERT_TRUE(lock.ok());
  const std::string path = dir_ + "/data.sock";
  EXPECT_TRUE(RemoveStaleSocket(path).ok()) << "no socket file exists";
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    { const BoundSocket dead(path, type, /*listens=*/false); }
    ASSERT_TRUE(fs::exists(path));
    EXPECT_TRUE(RemoveStaleSocket(path).ok()) << type;
    EXPECT_FALSE(fs::exists(path));
  }
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    const BoundSocket alive(path, type, /*listens=*/type != SOCK_DGRAM);
    EXPECT_THAT(Message(RemoveStaleSocket(path)), HasSubstr("another program listens on"));
    EXPECT_TRUE(fs::exists(path)) << type;
    fs::remove(path);
  }
}

TEST_F(LockFileTest, NeverRemovesAFileThatIsNotASocket) {
  const auto lock = LockFile::Acquire(dir_);
  ASSERT_TRUE(lock.ok());
  std::ofstream(dir_ + "/file") << "x";
  fs::create_directory(dir_ + "/directory");
  fs::create_symlink(dir_ + "/file", dir_ + "/link");
  for (const char* name : {"/file", "/directory", "/link"}) {
    EXPECT_THAT(Message(RemoveStaleSocket(dir_ + name)), HasSubstr("is not a socket"));
    EXPECT_TRUE(fs::exists(dir_ + name));
  }
}

}  // namespace
}  // namespace larder
