#include "server/runtime/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/clock.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder {
namespace {

absl::Status FromErrno(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

absl::Status PrepareDirectory(const std::string& dir) {
  // 0755: clients of other users must reach the socket files, whose modes decide who may connect.
  if (mkdir(dir.c_str(), 0755) != 0 && errno != EEXIST) {
    return FromErrno(errno, "cannot create the socket directory", dir);
  }
  struct stat st {};
  if (stat(dir.c_str(), &st) != 0) return FromErrno(errno, "cannot stat", dir);
  if (!S_ISDIR(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, " is not a directory: move it away or choose --socket-dir"));
  }
  if ((st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(absl::StrCat("every user may replace files in ", dir,
                                                      ": chmod o-w it or choose --socket-dir"));
  }
  return absl::OkStatus();
}

// Returns an error if the lock file belongs to neither this user nor the owner of its directory,
// and makes a file of this user inaccessible to other users (mode 0600): a user who can open the
// file can hold its lock, and then no daemon can start.
absl::Status KeepForOurselves(int fd, const struct stat& file, const std::string& path) {
  struct stat dir {};
  if (stat(path.substr(0, path.rfind('/')).c_str(), &dir) != 0) {
    return FromErrno(errno, "cannot stat the directory of", path);
  }
  if (file.st_uid != geteuid() && file.st_uid != dir.st_uid) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " belongs to uid ", file.st_uid,
                     ", which can lock it at any time: remove it or choose --socket-dir"));
  }
  // Earlier versions of larderd made the file readable by every user.
  if (file.st_uid == geteuid() && (file.st_mode & 0177) != 0 && fchmod(fd, 0600) != 0) {
    return FromErrno(errno, "cannot chmod", path);
  }
  return absl::OkStatus();
}

// Returns the pid in the lock file.  It may be wrong: only the lock decides which daemon serves the
// directory.
std::optional<pid_t> HolderPid(int fd) {
  char text[24] = {};
  const ssize_t n = pread(fd, text, sizeof text - 1, 0);
  pid_t pid = 0;
  const std::string_view read(text, n > 0 ? static_cast<size_t>(n) : 0);
  const auto trimmed = absl::StripAsciiWhitespace(AbslView(read));
  return absl::SimpleAtoi(trimmed, &pid) && pid > 0 ? std::optional(pid) : std::nullopt;
}

std::string NameOf(std::optional<pid_t> pid) {
  return pid ? absl::StrCat("pid ", *pid) : "of unknown pid";
}

// Whether the kernel has begun to end the process (PF_EXITING among the flags of proc(5)).
bool IsExiting(pid_t pid) {
  constexpr uint64_t kExiting = 4;
  constexpr size_t kFlags = 6;  // fields after the name, which is in parentheses
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line) || line.rfind(')') == std::string::npos) return false;
  const std::vector<std::string> fields =
      absl::StrSplit(line.substr(line.rfind(')') + 1), ' ', absl::SkipEmpty());
  uint64_t flags = 0;
  return fields.size() > kFlags && absl::SimpleAtoi(fields[kFlags], &flags) &&
         (flags & kExiting) != 0;
}

enum class HolderState : uint8_t { kRuns, kExits, kUnseen };

// Returns kExits for a process that has died, is exiting, or is about to because it was killed.
HolderState StateOf(std::optional<pid_t> pid) {
  if (!pid) return HolderState::kUnseen;
  std::ifstream file(absl::StrCat("/proc/", *pid, "/status"));
  if (!file) return HolderState::kUnseen;
  // A process whose threads are still exiting is a zombie already.
  constexpr uint64_t kKill = uint64_t{1} << (SIGKILL - 1);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(":\t "), absl::SkipEmpty());
    if (words.size() < 2) continue;
    if (words[0] == "State" && (words[1] == "Z" || words[1] == "X")) return HolderState::kExits;
    uint64_t pending = 0;
    if ((words[0] == "SigPnd" || words[0] == "ShdPnd") && absl::SimpleHexAtoi(words[1], &pending) &&
        (pending & kKill) != 0) {
      return HolderState::kExits;
    }
  }
  return IsExiting(*pid) ? HolderState::kExits : HolderState::kRuns;
}

// Whether a signal to end is pending, which larderd blocks until it serves.
bool AskedToEnd() {
  sigset_t pending;
  return sigpending(&pending) == 0 &&
         (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
}

// Locks the file.  Waits for a holder that exits, and for a shorter time for one that it cannot
// see.  Returns false, with errno set, if it has no lock.
bool Lock(int fd, absl::FunctionRef<void(const std::string&)> waits) {
  const TimePoint begun = SteadyNow();
  for (bool told = false;; told = true) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    const int error = errno;
    const std::optional<pid_t> pid = HolderPid(fd);
    const HolderState state = StateOf(pid);
    const auto most = state == HolderState::kExits    ? LockFile::kEndingMax
                      : state == HolderState::kUnseen ? LockFile::kUnseenMax
                                                      : std::chrono::seconds(0);
    errno = error;
    if (error != EWOULDBLOCK || SteadyNow() - begun >= most) return false;
    if (!told)
      waits(absl::StrCat("another larderd (", NameOf(pid), ") still has the lock; waiting for it"));
    constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 20'000'000};
    nanosleep(&kPause, nullptr);
    errno = EWOULDBLOCK;
    if (AskedToEnd()) return false;
  }
}

absl::Status WritePid(int fd) {
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, "cannot write the lock file");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LockFile>> LockFile::Acquire(
    const std::string& socket_dir, absl::FunctionRef<void(const std::string&)> waits) {
  LARDER_RETURN_IF_ERROR(PrepareDirectory(socket_dir));
  const std::string path = absl::StrCat(socket_dir, "/", kName);
  // O_NOFOLLOW: in a shared directory the name may be another user's link to one of our files.
  // 0600: another user who can open the file can also lock it, and so keep the next daemon out.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return FromErrno(errno, "cannot open the lock file", path);
  std::unique_ptr<LockFile> lock(new LockFile(fd));
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a regular file: move it away or choose --socket-dir"));
  }
  LARDER_RETURN_IF_ERROR(KeepForOurselves(fd, st, path));
  if (!Lock(fd, waits)) {
    if (errno != EWOULDBLOCK) return FromErrno(errno, "cannot lock", path);
    return absl::FailedPreconditionError(absl::StrCat("another larderd (", NameOf(HolderPid(fd)),
                                                      ") serves ", socket_dir,
                                                      ": stop it or choose --socket-dir"));
  }
  LARDER_RETURN_IF_ERROR(WritePid(fd));
  return lock;
}

LockFile::~LockFile() { close(fd_); }

}  // namespace larder
