#include "client/engine/directive_inbox.h"

#include <algorithm>
#include <utility>

namespace larder {

std::vector<BlockStatus> DirectiveInbox::Handle(const wire::Directive& directive) {
  constexpr int64_t kOnItsWayMs = 200;
  const auto left = static_cast<int64_t>(directive.valid_unix_ms - UnixMilliseconds());
  const std::chrono::milliseconds most(std::max<int64_t>(0, left - kOnItsWayMs));
  const TimePoint until = SteadyNow() + std::min(kAnswerMost, most);
  const MutexLock lock(mu_);
  waiting_ = directive;
  taken_ = false;
  answer_.reset();
  changed_.NotifyAll();
  while (!closed_ && !answer_ && changed_.WaitUntil(mu_, until)) {
  }
  waiting_.reset();
  if (answer_) return *std::exchange(answer_, std::nullopt);
  return std::vector(std::max<size_t>(1, directive.digests.size()), BlockStatus::kCancelled);
}

std::optional<wire::Directive> DirectiveInbox::Take(TimePoint until) {
  const MutexLock lock(mu_);
  while (!closed_ && (!waiting_ || taken_) && changed_.WaitUntil(mu_, until)) {
  }
  if (!waiting_ || taken_) return std::nullopt;
  taken_ = true;
  return waiting_;
}

void DirectiveInbox::PutBack(uint64_t directive_id) {
  const MutexLock lock(mu_);
  if (!IsOpen(directive_id)) return;
  taken_ = false;
  changed_.NotifyAll();
}

bool DirectiveInbox::Answer(uint64_t directive_id, std::vector<BlockStatus> status) {
  const MutexLock lock(mu_);
  if (!IsOpen(directive_id)) return false;
  answer_ = std::move(status);
  changed_.NotifyAll();
  return true;
}

bool DirectiveInbox::Waits(uint64_t directive_id) const {
  const MutexLock lock(mu_);
  return !closed_ && IsOpen(directive_id);
}

void DirectiveInbox::Close() {
  const MutexLock lock(mu_);
  closed_ = true;
  changed_.NotifyAll();
}

}  // namespace larder
