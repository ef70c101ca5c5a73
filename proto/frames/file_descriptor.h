// Owns one file descriptor of the kernel, or none.  The object closes the descriptor when it is
// destroyed or is given another one.
//
// Ownership: it owns the descriptor alone.  Thread-safety: that of an int.
// Lifecycle: movable; empty after a move.
#pragma once

#include <unistd.h>

#include <utility>

namespace larder {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes ownership of `fd`.  A negative `fd` makes the object empty.
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~FileDescriptor() { Reset(-1); }

  [[nodiscard]] explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int get() const { return fd_; }
  // Gives up ownership: returns the descriptor, which the caller must close, or -1 if there is
  // none.
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  void Reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }
  int fd_ = -1;
};

}  // namespace larder
