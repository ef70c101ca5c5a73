// Closes file descriptors whose close may wait, on threads that do nothing else.
//
// The last close of a TCP socket that lingers may wait for as long as its sender chose, and so may
// the last close of a unix socket that carries such a socket.  But the kernel lets no socket linger
// if it closes the socket because a thread exits.  So a thread with its own descriptor table (Linux
// 5.9, close_range) takes copies of the descriptors; then the process closes its own descriptors,
// which are not the last ones; and then the thread exits.
//
// A close that waits all the same (for a file system whose server does not answer) occupies its
// thread.  If the kernel is older or refuses, or no further thread can be started, a thread closes
// its batch in the ordinary way; then a lingering socket may occupy it, too.
//
// Ownership: it owns the descriptors from Close on.  There is one DescriptorCloser for the whole
// process, and it is never destroyed: its threads are detached, because the exit of the process
// must not wait for them.  The kernel lets no socket linger at the exit.
// Thread-safety: all methods may be called from any thread.
// Locks: mu_ and hand_over_ are leaves; no thread holds both.
// Limits: a thread closes up to kBatchMax descriptors at once.  From kThreadsMax threads on,
// another one is started only if kBatchMax descriptors wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "proto/frames/file_descriptor.h"
#include "storage/mutex.h"

namespace larder {

class DescriptorCloser {
 public:
  static constexpr size_t kThreadsMax = 64;
  static constexpr size_t kBatchMax = 64;

  [[nodiscard]] static DescriptorCloser& OfProcess();
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;

  // Queues the descriptor and returns without waiting for its close.  Ignores an empty descriptor.
  void Close(FileDescriptor descriptor) LARDER_EXCLUDES(mu_);

  struct Counts {
    uint64_t taken = 0;  // accepted so far
    size_t closing = 0;  // being closed now; some may no longer be open in this process
    size_t waiting = 0;  // waiting for a thread
  };
  [[nodiscard]] Counts counts() LARDER_EXCLUDES(mu_);

 private:
  DescriptorCloser() = default;
  void Run() LARDER_EXCLUDES(mu_);
  // Starts another thread that runs Run, if one is needed and can be started.
  void AddThread() LARDER_REQUIRES(mu_);

  Mutex hand_over_;  // held while a thread copies the descriptors of the process
  Mutex mu_;
  CondVar changed_;
  std::deque<FileDescriptor> queue_ LARDER_GUARDED_BY(mu_);
  size_t threads_ LARDER_GUARDED_BY(mu_) = 0;
  size_t busy_ LARDER_GUARDED_BY(mu_) = 0;  // threads that are closing a batch
  Counts counts_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
