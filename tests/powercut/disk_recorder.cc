// Preloaded into a process (LD_PRELOAD), this library records in a DiskLog each call that changes
// anything below a directory, and each sync, including those of RocksDB, which are plain calls of
// the C library.
//
//   POWERCUT_ROOT  the directory; it exists, and no part of it is a link
//   POWERCUT_LOG   the log (disk_log.h)
//
// A file that existed when the process started is identified by its inode number, and a file that
// the process makes by a number from kFirstMade on, so that a reused inode is another file. Not
// recorded: changes through mappings, duplicated descriptors and io_uring, and calls that functions
// of the C library make internally (fopen).  The tested programs use none of these:
// tier_replay_test.cc compares the replay of a whole log with the directory.
// Thread-safety: that of the intercepted calls.  Calls that change a directory wait for one
// another.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "tests/powercut/disk_log.h"

namespace larder::powercut {
namespace {

using Entry = DiskLog::Entry;

template <class Call>
Call* Next(Call* /*ours*/, const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}
#define LARDER_NEXT(call) static const auto next = Next(&call, #call)

class Recorder {
 public:
  static constexpr uint64_t kFirstMade = uint64_t{1} << 40;

  static Recorder& Get() {
    static Recorder* const recorder = new Recorder;  // never destroyed: calls may come at exit
    return *recorder;
  }

  // Where a path leads.  Find returns nullopt if it is outside the directory.
  struct Place {
    uint64_t directory = 0;
    std::string name;
  };
  [[nodiscard]] std::optional<Place> Find(int at, const char* path) {
    if (path == nullptr || log_ == nullptr) return std::nullopt;
    std::string text(path);
    while (text.size() > 1 && text.back() == '/') text.pop_back();
    const bool below = at != AT_FDCWD && text[0] != '/';
    if (below ? FileOf(at) == 0 : !text.starts_with(root_ + "/")) return std::nullopt;
    const size_t slash = text.rfind('/');
    Place place{.name = slash == std::string::npos ? text : text.substr(slash + 1)};
    if (slash == std::string::npos) {
      place.directory = FileOf(at);
    } else {
      place.directory = Known(at, text.substr(0, slash).c_str());
    }
    if (place.directory == 0) return std::nullopt;
    return place;
  }
  // Returns 0 if the file does not exist.
  [[nodiscard]] uint64_t Known(int at, const char* path) {
    struct stat found {};
    if (fstatat(at, path, &found, AT_SYMLINK_NOFOLLOW) != 0) return 0;
    const auto number = numbers_.find(found.st_ino);
    return number != numbers_.end() ? number->second : found.st_ino;
  }
  [[nodiscard]] uint64_t Make(int at, const char* path) {
    struct stat made {};
    if (fstatat(at, path, &made, AT_SYMLINK_NOFOLLOW) != 0) return 0;
    return numbers_[made.st_ino] = made_++;
  }

  // Returns true for the directory itself, which Find does not find.
  [[nodiscard]] bool IsRoot(const char* path) const { return log_ != nullptr && path == root_; }

  // Returns 0 if the file is outside the directory.
  [[nodiscard]] uint64_t FileOf(int fd) const {
    return fd >= 0 && static_cast<size_t>(fd) < files_.size()
               ? files_[static_cast<size_t>(fd)].load()
               : 0;
  }
  void Opened(int fd, uint64_t file) {
    if (fd >= 0 && static_cast<size_t>(fd) < files_.size()) files_[static_cast<size_t>(fd)] = file;
  }

  [[nodiscard]] DiskLog& log() { return *log_; }
  std::recursive_mutex mu;  // held by calls that change directories

 private:
  Recorder() {
    const char* root = std::getenv("POWERCUT_ROOT");
    const char* log = std::getenv("POWERCUT_LOG");
    if (root == nullptr || log == nullptr) return;
    root_ = root;
    log_ = new DiskLog(log);
  }

  std::string root_;
  DiskLog* log_ = nullptr;
  uint64_t made_ = kFirstMade;
  std::map<ino_t, uint64_t> numbers_;  // of files that the process made
  std::array<std::atomic<uint64_t>, 65'536> files_{};
};

// Records a change of a file's bytes around the call that makes it.  `call` returns what write
// returns.
template <class Call>
ssize_t Changing(int fd, Entry entry, Call call) {
  Recorder& recorder = Recorder::Get();
  entry.file = recorder.FileOf(fd);
  if (entry.file == 0) return call();
  DiskLog::Record* record = recorder.log().Append(entry);
  const ssize_t done = call();
  const int error = errno;
  if (done < 0) {
    DiskLog::Fail(record);
  } else {
    if (entry.op == DiskOp::kWrite) record->length = static_cast<uint64_t>(done);
    recorder.log().Done(record);
  }
  errno = error;
  return done;
}

template <class Call>
ssize_t Writing(int fd, const iovec* from, int count, std::optional<off_t> at, Call call) {
  if (Recorder::Get().FileOf(fd) == 0) return call();
  std::string bytes;
  for (int i = 0; i < count; ++i)
    bytes.append(static_cast<const char*>(from[i].iov_base), from[i].iov_len);
  struct stat now {};
  if (!at && (fcntl(fd, F_GETFL) & O_APPEND) != 0 && fstat(fd, &now) == 0) at = now.st_size;
  if (!at) at = lseek(fd, 0, SEEK_CUR);
  return Changing(fd,
                  {.op = DiskOp::kWrite,
                   .offset = static_cast<uint64_t>(*at),
                   .length = bytes.size(),
                   .bytes = reinterpret_cast<const std::byte*>(bytes.data())},
                  call);
}

template <class Call>
int Syncing(int fd, Call call) {
  Recorder& recorder = Recorder::Get();
  const uint64_t file = recorder.FileOf(fd);
  if (file == 0) return call();
  const uint64_t began = recorder.log().end();
  const int result = call();
  const int error = errno;
  if (result == 0) recorder.log().AppendDone({.op = DiskOp::kSync, .file = file, .offset = began});
  errno = error;
  return result;
}

template <class Call>
int Opening(int at, const char* path, int flags, Call call) {
  Recorder& recorder = Recorder::Get();
  const std::lock_guard<std::recursive_mutex> lock(recorder.mu);
  const std::optional<Recorder::Place> place = recorder.Find(at, path);
  if (!place) {
    const int fd = call();
    if (fd >= 0 && recorder.IsRoot(path)) recorder.Opened(fd, recorder.Known(at, path));
    return fd;
  }
  const uint64_t before = recorder.Known(at, path);
  const int fd = call();
  const int error = errno;
  if (fd >= 0 && before == 0) {
    const uint64_t file = recorder.Make(at, path);
    recorder.Opened(fd, file);
    recorder.log().AppendDone(
        {.op = DiskOp::kCreate, .file = file, .directory = place->directory, .name = place->name});
  } else if (fd >= 0) {
    recorder.Opened(fd, before);
    if ((flags & O_TRUNC) != 0)
      recorder.log().AppendDone({.op = DiskOp::kTruncate, .file = before, .offset = 0});
  }
  errno = error;
  return fd;
}

template <class Call>
int Removing(int at, const char* path, Call call) {
  Recorder& recorder = Recorder::Get();
  const std::lock_guard<std::recursive_mutex> lock(recorder.mu);
  const std::optional<Recorder::Place> place = recorder.Find(at, path);
  const int result = call();
  const int error = errno;
  if (place && result == 0) {
    recorder.log().AppendDone(
        {.op = DiskOp::kRemove, .directory = place->directory, .name = place->name});
  }
  errno = error;
  return result;
}

template <class Call>
int Renaming(int from_at, const char* from, int to_at, const char* to, Call call) {
  Recorder& recorder = Recorder::Get();
  const std::lock_guard<std::recursive_mutex> lock(recorder.mu);
  const std::optional<Recorder::Place> old_place = recorder.Find(from_at, from);
  const std::optional<Recorder::Place> new_place = recorder.Find(to_at, to);
  const uint64_t file = old_place ? recorder.Known(from_at, from) : 0;
  const int result = call();
  const int error = errno;
  if (old_place && new_place && result == 0) {
    recorder.log().AppendDone({.op = DiskOp::kRename,
                               .file = file,
                               .directory = old_place->directory,
                               .to_directory = new_place->directory,
                               .name = old_place->name,
                               .to_name = new_place->name});
  }
  errno = error;
  return result;
}

template <class Call>
int MakingFolder(int at, const char* path, Call call) {
  Recorder& recorder = Recorder::Get();
  const std::lock_guard<std::recursive_mutex> lock(recorder.mu);
  const std::optional<Recorder::Place> place = recorder.Find(at, path);
  const int result = call();
  const int error = errno;
  if (place && result == 0) {
    recorder.log().AppendDone({.op = DiskOp::kMakeFolder,
                               .file = recorder.Make(at, path),
                               .directory = place->directory,
                               .name = place->name});
  }
  errno = error;
  return result;
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace
}  // namespace larder::powercut

// ---- Replacements of functions of the C library.

using namespace larder::powercut;  // NOLINT: only the functions below follow

extern "C" {

int open(const char* path, int flags, ...) {
  LARDER_NEXT(open);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Opening(AT_FDCWD, path, flags, [&] { return next(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
  LARDER_NEXT(open64);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Opening(AT_FDCWD, path, flags, [&] { return next(path, flags, mode); });
}
int openat(int at, const char* path, int flags, ...) {
  LARDER_NEXT(openat);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Opening(at, path, flags, [&] { return next(at, path, flags, mode); });
}
int openat64(int at, const char* path, int flags, ...) {
  LARDER_NEXT(openat64);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Opening(at, path, flags, [&] { return next(at, path, flags, mode); });
}
int creat(const char* path, mode_t mode) { return open(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int close(int fd) {
  LARDER_NEXT(close);
  Recorder::Get().Opened(fd, 0);
  return next(fd);
}
int closedir(DIR* folder) {
  LARDER_NEXT(closedir);
  Recorder::Get().Opened(dirfd(folder), 0);  // openat may have opened it
  return next(folder);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  LARDER_NEXT(write);
  const iovec one{const_cast<void*>(from), bytes};
  return Writing(fd, &one, 1, std::nullopt, [&] { return next(fd, from, bytes); });
}
ssize_t writev(int fd, const iovec* from, int count) {
  LARDER_NEXT(writev);
  return Writing(fd, from, count, std::nullopt, [&] { return next(fd, from, count); });
}
ssize_t pwrite(int fd, const void* from, size_t bytes, off_t at) {
  LARDER_NEXT(pwrite);
  const iovec one{const_cast<void*>(from), bytes};
  return Writing(fd, &one, 1, at, [&] { return next(fd, from, bytes, at); });
}
ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t at) {
  LARDER_NEXT(pwrite64);
  const iovec one{const_cast<void*>(from), bytes};
  return Writing(fd, &one, 1, at, [&] { return next(fd, from, bytes, at); });
}
ssize_t pwritev(int fd, const iovec* from, int count, off_t at) {
  LARDER_NEXT(pwritev);
  return Writing(fd, from, count, at, [&] { return next(fd, from, count, at); });
}
ssize_t pwritev64(int fd, const iovec* from, int count, off64_t at) {
  LARDER_NEXT(pwritev64);
  return Writing(fd, from, count, at, [&] { return next(fd, from, count, at); });
}

int ftruncate(int fd, off_t bytes) noexcept {
  LARDER_NEXT(ftruncate);
  return static_cast<int>(
      Changing(fd, {.op = DiskOp::kTruncate, .offset = static_cast<uint64_t>(bytes)},
               [&] { return next(fd, bytes); }));
}
int ftruncate64(int fd, off64_t bytes) noexcept {
  LARDER_NEXT(ftruncate64);
  return static_cast<int>(
      Changing(fd, {.op = DiskOp::kTruncate, .offset = static_cast<uint64_t>(bytes)},
               [&] { return next(fd, bytes); }));
}
int fallocate(int fd, int mode, off_t at, off_t bytes) {
  LARDER_NEXT(fallocate);
  const auto call = [&] { return next(fd, mode, at, bytes); };
  constexpr int kKeepSize = 1, kPunchHole = 2;  // FALLOC_FL_*
  if (mode == kKeepSize) return call();
  if (mode == (kKeepSize | kPunchHole)) {
    return static_cast<int>(Changing(fd,
                                     {.op = DiskOp::kZero,
                                      .offset = static_cast<uint64_t>(at),
                                      .length = static_cast<uint64_t>(bytes)},
                                     call));
  }
  return static_cast<int>(
      Changing(fd, {.op = DiskOp::kAllocate, .offset = static_cast<uint64_t>(at + bytes)}, call));
}
int posix_fallocate(int fd, off_t at, off_t bytes) {
  LARDER_NEXT(posix_fallocate);
  // posix_fallocate returns the error itself.
  return static_cast<int>(
      Changing(fd, {.op = DiskOp::kAllocate, .offset = static_cast<uint64_t>(at + bytes)},
               [&] { return next(fd, at, bytes); }));
}

int fsync(int fd) {
  LARDER_NEXT(fsync);
  return Syncing(fd, [&] { return next(fd); });
}
int fdatasync(int fd) {
  LARDER_NEXT(fdatasync);
  return Syncing(fd, [&] { return next(fd); });
}

int unlink(const char* path) noexcept {
  LARDER_NEXT(unlink);
  return Removing(AT_FDCWD, path, [&] { return next(path); });
}
int unlinkat(int at, const char* path, int flags) noexcept {
  LARDER_NEXT(unlinkat);
  return Removing(at, path, [&] { return next(at, path, flags); });
}
int rmdir(const char* path) noexcept {
  LARDER_NEXT(rmdir);
  return Removing(AT_FDCWD, path, [&] { return next(path); });
}
int remove(const char* path) noexcept {
  LARDER_NEXT(remove);
  return Removing(AT_FDCWD, path, [&] { return next(path); });
}
int rename(const char* from, const char* to) noexcept {
  LARDER_NEXT(rename);
  return Renaming(AT_FDCWD, from, AT_FDCWD, to, [&] { return next(from, to); });
}
int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  LARDER_NEXT(renameat);
  return Renaming(from_at, from, to_at, to, [&] { return next(from_at, from, to_at, to); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  LARDER_NEXT(mkdir);
  return MakingFolder(AT_FDCWD, path, [&] { return next(path, mode); });
}
int mkdirat(int at, const char* path, mode_t mode) noexcept {
  LARDER_NEXT(mkdirat);
  return MakingFolder(at, path, [&] { return next(at, path, mode); });
}

}  // extern "C"
