// Closes descriptors whose close may wait, on threads that do nothing else.
//
// A socket that lingers makes the last close of it wait for as long as its sender chose, and a
// socket that carries such ones makes its own close wait.  But the kernel lets nothing linger that
// goes with a thread which exits.  So a thread with a table of descriptors of its own (Linux 5.9,
// close_range) takes over what is to be closed, the process closes it, which is not the last close
// then, and that thread exits.  What lingers costs neither time nor a descriptor, so that no peer
// can use up either by sending more of them, whatever its share of connections is.
//
// A close that waits all the same (a file system whose server does not answer) costs its thread and
// no descriptor.  Where the kernel is older, or refuses, a thread closes as anybody would, and
// kThreadsMax sockets that linger keep the next ones waiting, open.
//
// Ownership: the descriptors, from Close on.  One for the whole process, which never ends: its
// threads are detached, since an exit must not wait for them; the kernel does not linger then.
// Thread-safety: all methods from any thread.
// Limits: kThreadsMax closes of up to kBatchMax descriptors at once, and one more for each
// kBatchMax that wait.
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

  // Returns at once.
  void Close(FileDescriptor descriptor) LARDER_EXCLUDES(mu_);

  struct Counts {
    uint64_t taken = 0;  // so far
    size_t closing = 0;  // now; most of them are no descriptors of this process any more
    size_t waiting = 0;  // for a thread
  };
  [[nodiscard]] Counts counts() LARDER_EXCLUDES(mu_);

 private:
  DescriptorCloser() = default;
  void Run() LARDER_EXCLUDES(mu_);
  // A thread more that runs Run, if one would help and can be had.
  void AddThread() LARDER_REQUIRES(mu_);

  Mutex hand_over_;  // one thread at a time copies the descriptors of the process
  Mutex mu_;
  CondVar changed_;
  std::deque<FileDescriptor> queue_ LARDER_GUARDED_BY(mu_);
  size_t threads_ LARDER_GUARDED_BY(mu_) = 0;
  size_t busy_ LARDER_GUARDED_BY(mu_) = 0;  // of the threads
  Counts counts_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
