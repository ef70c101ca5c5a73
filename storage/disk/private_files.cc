#include "storage/disk/private_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"
#include "storage/types.h"

namespace larder {
namespace {

std::string ParentOf(const std::string& path) {
  std::filesystem::path at(path);
  if (!at.has_filename()) at = at.parent_path();  // "DIR/"
  return at.has_parent_path() ? at.parent_path().string() : ".";
}

bool IsOurs(uid_t owner) { return owner == geteuid() || owner == 0; }

absl::Status NotOurs(const std::string& path, uid_t owner) {
  return absl::FailedPreconditionError(absl::StrCat(path, " belongs to uid ", owner,
                                                    ", who could change what is stored; give it to "
                                                    "uid ",
                                                    geteuid(),
                                                    " (chown -R), or use another directory"));
}

absl::Status CheckDirectory(int fd, const std::string& path) {
  struct stat found {};
  if (fstat(fd, &found) != 0) return FileError(errno, "cannot stat", path);
  if (!IsOurs(found.st_uid)) return NotOurs(path, found.st_uid);
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     " can be written by other users, who could change what is stored; if you "
                     "trust its content, remove their write access (chmod -R go-w on the whole "
                     "directory)"));
  }
  // A process of another user cannot change the mode of a directory that belongs to root.
  if (found.st_uid == geteuid() && (found.st_mode & 0077) != 0 && fchmod(fd, 0700) != 0)
    return FileError(errno, "cannot change the mode of", path);
  return absl::OkStatus();
}

}  // namespace

absl::Status FileError(int error, const std::string& what, const std::string& path) {
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  if (error != ELOOP) return absl::UnavailableError(text);
  return absl::FailedPreconditionError(
      absl::StrCat(path,
                   " is a symbolic link, which larderd does not follow there; replace it with a "
                   "regular file or directory"));
}

absl::Status MakePrivateDirectory(const std::string& path, Links links) {
  const bool made = mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return FileError(errno, "cannot create", path);
  const int follow = links == Links::kFollowed ? 0 : O_NOFOLLOW;
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow);
  if (fd < 0) {
    struct stat found {};
    const int error = errno;
    const bool link = lstat(path.c_str(), &found) == 0 && S_ISLNK(found.st_mode);
    return FileError(link && follow != 0 ? ELOOP : error, "cannot open", path);
  }
  absl::Status status = CheckDirectory(fd, path);
  close(fd);
  LARDER_RETURN_IF_ERROR(status);
  // The process that created an existing directory may have been killed before it synced the
  // parent, so the parent is synced in either case.  Errors do not count for an existing directory:
  // an operator may have created it in a parent that this process cannot open.
  const absl::Status synced = SyncDirectory(ParentOf(path));
  return made ? synced : status;
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError(errno, "cannot open", path);
  const int synced = fsync(fd);
  const int error = errno;
  close(fd);
  return synced == 0 ? absl::OkStatus() : FileError(error, "cannot sync", path);
}

absl::Status TryToWriteIn(const std::string& directory) {
  const std::string path = directory + "/probe";
  const absl::StatusOr<int> fd = OpenPrivateFile(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (!fd.ok()) return absl::UnavailableError("cannot create a file in " + directory);
  const std::string bytes(KiB(64).value(), '\0');
  const bool written =
      write(*fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
      fsync(*fd) == 0;
  close(*fd);
  unlink(path.c_str());
  return written ? absl::OkStatus()
                 : absl::UnavailableError("cannot write to a file in " + directory);
}

absl::StatusOr<int> OpenPrivateFile(const std::string& path, int flags, int* error) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    if (error != nullptr) *error = errno;
    return FileError(errno, "cannot open", path);
  }
  struct stat found {};
  absl::Status status =
      fstat(fd, &found) == 0 ? absl::OkStatus() : FileError(errno, "cannot stat", path);
  if (status.ok() && !IsOurs(found.st_uid)) status = NotOurs(path, found.st_uid);
  if (status.ok() && !S_ISREG(found.st_mode))
    status = absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file; remove it"));
  // Another user that could open the file could also lock it.
  if (status.ok() && found.st_uid == geteuid() && (found.st_mode & 0077) != 0)
    (void)fchmod(fd, 0600);
  if (status.ok()) return fd;
  close(fd);
  return status;
}

std::string ReadSmallFile(const std::string& path) {
  const absl::StatusOr<int> fd = OpenPrivateFile(path, O_RDONLY | O_NONBLOCK);
  if (!fd.ok()) return "";
  std::string text(4096, '\0');
  const ssize_t bytes = read(*fd, text.data(), text.size());
  close(*fd);
  text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
  return text;
}

absl::Status WriteDurably(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  LARDER_ASSIGN_OR_RETURN(const int fd, OpenPrivateFile(next, O_WRONLY | O_CREAT | O_TRUNC));
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (!written) return FileError(error, "cannot write", next);
  if (rename(next.c_str(), path.c_str()) != 0) return FileError(errno, "cannot rename", next);
  return SyncDirectory(ParentOf(path));
}

}  // namespace larder
