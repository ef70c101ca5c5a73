// Runs an engine's handler for directives, one at a time on a thread of its own, and sends its
// answers to the daemon.
//
// A directive that has expired when its turn comes is not handled; its answer is CANCELLED.
// `now_ms` must be the wall clock that the daemon uses.
// Ownership: Owned by SessionCore.
// Thread-safety: Add may be called from any thread.
// Lifecycle: made (starts the thread) -> Add ... -> Stop (waits for a handler under way).
// Directives that still wait then are not answered.
// Limits: kWaitingMax directives may wait; a directive beyond that is dropped.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class DirectiveRunner {
 public:
  static constexpr size_t kWaitingMax = 4096;

  // Returns a status for each key of the directive; if it has no keys, none, or why it was not
  // done.
  using Handler = std::function<std::vector<BlockStatus>(const wire::Directive&)>;
  using Send = std::function<absl::Status(wire::Up)>;
  DirectiveRunner(Handler handler, WallClock now_ms, Send send);
  ~DirectiveRunner();
  DirectiveRunner(const DirectiveRunner&) = delete;
  DirectiveRunner& operator=(const DirectiveRunner&) = delete;

  void Add(wire::Directive directive) LARDER_EXCLUDES(mu_);
  // Once Stop has returned, nothing is handled or sent.  May be called again.
  void Stop() LARDER_EXCLUDES(mu_);
  // Returns true once Stop has begun.
  [[nodiscard]] bool stopped() const LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return stop_;
  }

 private:
  void Run() LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<BlockStatus> Do(const wire::Directive& directive) const;

  const Handler handler_;
  const WallClock now_ms_;
  const Send send_;
  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::deque<wire::Directive> waiting_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
