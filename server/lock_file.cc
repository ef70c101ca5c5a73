#include "server/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace larder {
namespace {

absl::Status FromErrno(int error, absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

absl::Status PrepareDirectory(const std::string& dir) {
  // 0755: clients of other users must get at the socket files, whose modes say who may connect.
  if (mkdir(dir.c_str(), 0755) != 0 && errno != EEXIST) {
    return FromErrno(errno, "cannot make the socket directory", dir);
  }
  struct stat st {};
  if (stat(dir.c_str(), &st) != 0) return FromErrno(errno, "cannot look at", dir);
  if (!S_ISDIR(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, " is not a directory: move it away or choose --socket-dir"));
  }
  if ((st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(absl::StrCat("everybody may replace files in ", dir,
                                                      ": chmod o-w it or choose --socket-dir"));
  }
  return absl::OkStatus();
}

// What the holder wrote; the pid is for people, the lock is what counts.
std::string HolderPid(int fd) {
  char text[24] = {};
  const ssize_t n = pread(fd, text, sizeof text - 1, 0);
  uint64_t pid = 0;
  const std::string_view read(text, n > 0 ? static_cast<size_t>(n) : 0);
  const auto trimmed = absl::StripAsciiWhitespace(absl::string_view(read.data(), read.size()));
  return absl::SimpleAtoi(trimmed, &pid) ? absl::StrCat("pid ", pid) : "of unknown pid";
}

absl::Status WritePid(int fd) {
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, "cannot write the lock file");
  }
  return absl::OkStatus();
}

// Tries to connect as one kind of socket.  0: somebody listens.
int ConnectErrno(const sockaddr_un& address, int type) {
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = result == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LockFile>> LockFile::Acquire(const std::string& socket_dir) {
  const absl::Status prepared = PrepareDirectory(socket_dir);
  if (!prepared.ok()) return prepared;
  const std::string path = absl::StrCat(socket_dir, "/", kName);
  // O_NOFOLLOW: in a shared directory the name may be somebody else's link to a file of ours.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) return FromErrno(errno, "cannot open the lock file", path);
  std::unique_ptr<LockFile> lock(new LockFile(fd));
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a regular file: move it away or choose --socket-dir"));
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FromErrno(errno, "cannot lock", path);
    return absl::FailedPreconditionError(absl::StrCat("another larderd (", HolderPid(fd),
                                                      ") serves ", socket_dir,
                                                      ": stop it or choose --socket-dir"));
  }
  const absl::Status written = WritePid(fd);
  if (!written.ok()) return written;
  return lock;
}

LockFile::~LockFile() { close(fd_); }

absl::Status LockFile::RemoveStaleSocket(const std::string& path) const {
  struct stat st {};
  if (lstat(path.c_str(), &st) != 0) {
    return errno == ENOENT ? absl::OkStatus() : FromErrno(errno, "cannot look at", path);
  }
  if (!S_ISSOCK(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a socket: move it away or choose --socket-dir"));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too long for a socket file"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    const int error = ConnectErrno(address, type);
    if (error == EPROTOTYPE) continue;  // a listener, or a dead one, of another kind
    if (error == ECONNREFUSED) break;   // nobody: whoever bound it is gone
    return absl::FailedPreconditionError(
        absl::StrCat("another program listens on ", path, ": stop it or choose --socket-dir"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return FromErrno(errno, "cannot remove", path);
  return absl::OkStatus();
}

}  // namespace larder
