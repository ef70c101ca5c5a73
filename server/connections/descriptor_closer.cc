#include "server/connections/descriptor_closer.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "storage/thread_priority.h"

namespace larder {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kUnshare = 2;  // CLOSE_RANGE_UNSHARE
#ifndef SYS_close_range
#define SYS_close_range 436  // Linux 5.9, all architectures except alpha
#endif

// Starts a detached thread.  Returns false if it cannot be started, where std::thread would throw.
bool StartDetached(void* (*run)(void*), void* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, run, argument) == 0;
  pthread_attr_destroy(&attributes);
  return started;
}

// A thread that has copies of some descriptors and of no others, and that closes these copies by
// exiting.
class Undertaker {
 public:
  // REQUIRES: `numbers` is in ascending order and not empty.
  explicit Undertaker(std::vector<int> numbers) : numbers_(std::move(numbers)) {}

  // Starts the thread, and returns true when the thread has its copies.  Returns false if the
  // thread could not be started or could not get the copies.
  static bool Start(const std::shared_ptr<Undertaker>& self) {
    auto given = std::make_unique<std::shared_ptr<Undertaker>>(self);
    const auto run = [](void* taken) -> void* {
      const std::unique_ptr<std::shared_ptr<Undertaker>> mine(
          static_cast<std::shared_ptr<Undertaker>*>(taken));
      pthread_setname_np(pthread_self(), "closer-end");
      (*mine)->Run();
      return nullptr;
    };
    if (!StartDetached(run, given.get())) return false;
    (void)given.release();
    self->state_.wait(State::kStarted);
    return self->state_.load() == State::kHasCopies;
  }
  // Called when the process has closed its own descriptors: the thread now exits.
  void Release() {
    state_.store(State::kReleased);
    state_.notify_all();
  }
  // REQUIRES: Start returned true, and Release was called.
  void AwaitEnd() const {
    constexpr long kShortest_ns = 200'000, kLongest_ns = 100'000'000;
    // When the thread has exited, its thread id no longer exists.
    for (long pause = kShortest_ns; syscall(SYS_tgkill, getpid(), thread_.load(), 0) == 0;) {
      const timespec time{.tv_sec = 0, .tv_nsec = pause};
      nanosleep(&time, nullptr);
      pause = std::min(2 * pause, kLongest_ns);
    }
  }

 private:
  enum class State : uint8_t { kStarted, kFailed, kHasCopies, kReleased };

  void Run() {
    thread_.store(static_cast<pid_t>(gettid()));
    const bool has = KeepOnlyNumbers();
    state_.store(has ? State::kHasCopies : State::kFailed);
    state_.notify_all();
    if (has) state_.wait(State::kHasCopies);
  }
  // Closes all descriptors except `numbers_` in this thread's own table.  The first call unshares
  // the table and closes the descriptors beyond the last number, so those are not even copied.
  [[nodiscard]] bool KeepOnlyNumbers() const {
    const auto close_between = [](int first, unsigned last, unsigned flags) {
      return static_cast<unsigned>(first) > last ||
             syscall(SYS_close_range, first, last, flags) == 0;
    };
    if (!close_between(numbers_.back() + 1, UINT_MAX, kUnshare)) return false;
    int next = 0;
    for (const int number : numbers_) {
      if (number > next && !close_between(next, static_cast<unsigned>(number) - 1, 0)) return false;
      next = number + 1;
    }
    return true;
  }

  const std::vector<int> numbers_;
  std::atomic<State> state_{State::kStarted};
  std::atomic<pid_t> thread_{0};
};

// The thread of an Undertaker starts, while `hand_over` is held, with copies of the descriptors of
// the process up to the last number of its batch, and closes those that are not in its batch.  One
// of these may be in the batch of another Undertaker.  If it were the last copy, its close could
// linger, because a starting thread is not exiting.  So an Undertaker keeps the copies of its
// batch, after the process has closed its own, until one that was starting meanwhile has closed
// what is not in its own batch.
void CloseAll(std::vector<FileDescriptor> batch, Mutex& hand_over) {
  std::vector<int> numbers;
  for (const FileDescriptor& descriptor : batch) {
    // Turns lingering off, in case no Undertaker can start and a plain close must do.  The sender
    // may turn it on again.
    const linger off{};
    (void)setsockopt(descriptor.get(), SOL_SOCKET, SO_LINGER, &off, sizeof off);
    numbers.push_back(descriptor.get());
  }
  std::ranges::sort(numbers);
  const auto undertaker = std::make_shared<Undertaker>(std::move(numbers));
  {
    MutexLock lock(hand_over);
    if (!Undertaker::Start(undertaker)) return;
  }
  batch.clear();  // may wait for a file system
  // Waits until an Undertaker that is starting has closed its copies of this batch.
  { MutexLock lock(hand_over); }
  undertaker->Release();
  undertaker->AwaitEnd();
}

}  // namespace

DescriptorCloser& DescriptorCloser::OfProcess() {
  static auto* const closer = new DescriptorCloser;
  return *closer;
}

void DescriptorCloser::Close(FileDescriptor descriptor) {
  if (!descriptor) return;
  MutexLock lock(mu_);
  queue_.push_back(std::move(descriptor));
  ++counts_.taken;
  AddThread();
  changed_.NotifyOne();
}

DescriptorCloser::Counts DescriptorCloser::counts() {
  MutexLock lock(mu_);
  Counts counts = counts_;
  counts.waiting = queue_.size();
  return counts;
}

// If no thread can be started, the queued descriptors wait for an existing thread, or for the next
// Close, which tries again.
void DescriptorCloser::AddThread() {
  if (busy_ < threads_) return;
  if (threads_ >= kThreadsMax && queue_.size() < kBatchMax) return;
  const auto run = [](void* closer) -> void* {
    pthread_setname_np(pthread_self(), "closer");
    SetThreadPriority(ThreadPriority::kOrdinary);  // an urgent thread may have started it
    static_cast<DescriptorCloser*>(closer)->Run();
    return nullptr;
  };
  if (StartDetached(run, this)) ++threads_;
}

void DescriptorCloser::Run() {
  MutexLock lock(mu_);
  for (;;) {
    while (queue_.empty()) changed_.Wait(mu_);
    std::vector<FileDescriptor> batch;
    while (!queue_.empty() && batch.size() < kBatchMax) {
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    const size_t closing = batch.size();
    counts_.closing += closing;
    ++busy_;
    if (!queue_.empty()) AddThread();
    mu_.Unlock();
    CloseAll(std::move(batch), hand_over_);
    mu_.Lock();
    --busy_;
    counts_.closing -= closing;
  }
}

}  // namespace larder
