// Wakes a thread that polls descriptors: an eventfd that is readable from Wake to Clear.
//
// Ownership: it owns the descriptor alone.  Lifecycle: movable; empty after a move.
// Thread-safety: Wake from any thread; fd and Clear from the thread that polls.
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"

namespace larder {

class WakeUp {
 public:
  // Returns the kernel's error, with the text `error`, if it cannot open an eventfd, for example
  // because the process has no descriptor left.
  [[nodiscard]] static absl::StatusOr<WakeUp> Open(const char* error) {
    FileDescriptor fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd) return absl::ErrnoToStatus(errno, error);
    return WakeUp(std::move(fd));
  }
  // The descriptor to poll for reading.
  [[nodiscard]] int fd() const { return fd_.get(); }
  // The result is ignored: if the write fails, the counter is full and the descriptor readable.
  void Wake() const { (void)eventfd_write(fd_.get(), 1); }
  // Makes the descriptor unreadable until the next Wake.
  void Clear() const {
    eventfd_t count;
    (void)eventfd_read(fd_.get(), &count);
  }

 private:
  explicit WakeUp(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

}  // namespace larder
