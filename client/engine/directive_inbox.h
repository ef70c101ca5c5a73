// Directives of the daemon (SessionOptions::on_directive), as something that an engine asks for.
//
// An engine takes directives on a thread of its own, when it has time for them, so that no thread
// of the session ever calls it: one in Python could not be called.  The session's thread waits in
// Handle meanwhile:
//
//   waiting ----Take----> taken ----Answer----> answered
//      ^----PutBack---------|
//   waiting, taken ----expired, or Close----> given up; Answer returns false
//
// A directive that waited behind others has less than kAnswerMost left, because the daemon's
// patience began when it was sent.
// Thread-safety: all methods from any thread.  Locks: mu_ is a leaf.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/client.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class DirectiveInbox {
 public:
  // How long Handle waits for the engine.  The daemon ignores what comes 5 s after it has sent the
  // directive.
  static constexpr std::chrono::milliseconds kAnswerMost{4'000};

  // The session's on_directive: the session makes one call at a time.  Returns what the engine
  // answered.  If the engine does not answer in time, returns kCancelled for each key, or one
  // kCancelled if there are no keys, because no status would mean that it carried the directive
  // out.
  [[nodiscard]] std::vector<BlockStatus> Handle(const wire::Directive& directive)
      LARDER_EXCLUDES(mu_);
  // Returns the directive that waits, and counts it as taken; nullopt if none waits before `until`.
  [[nodiscard]] std::optional<wire::Directive> Take(TimePoint until) LARDER_EXCLUDES(mu_);
  // The engine has lost a directive that it took, without an answer: Take returns it again.
  void PutBack(uint64_t directive_id) LARDER_EXCLUDES(mu_);
  // Returns false if the daemon does not wait for this directive any more.
  [[nodiscard]] bool Answer(uint64_t directive_id, std::vector<BlockStatus> status)
      LARDER_EXCLUDES(mu_);
  // Returns false if the daemon does not wait for this directive any more.
  [[nodiscard]] bool Waits(uint64_t directive_id) const LARDER_EXCLUDES(mu_);
  // No directive waits from now on.
  void Close() LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool closed() const LARDER_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return closed_;
  }

 private:
  // Returns whether it is the directive that waits for an answer.
  [[nodiscard]] bool IsOpen(uint64_t directive_id) const LARDER_REQUIRES(mu_) {
    return waiting_ && waiting_->directive_id == directive_id && !answer_;
  }

  mutable Mutex mu_;
  CondVar changed_;
  bool closed_ LARDER_GUARDED_BY(mu_) = false;
  std::optional<wire::Directive> waiting_ LARDER_GUARDED_BY(mu_);  // not answered yet
  bool taken_ LARDER_GUARDED_BY(mu_) = false;
  std::optional<std::vector<BlockStatus>> answer_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
