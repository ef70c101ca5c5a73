#include "client/session/directive_runner.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace larder {

DirectiveRunner::DirectiveRunner(Handler handler, WallClock now_ms, Send send)
    : handler_(std::move(handler)),
      now_ms_(std::move(now_ms)),
      send_(std::move(send)),
      thread_([this] { Run(); }) {}

DirectiveRunner::~DirectiveRunner() { Stop(); }

void DirectiveRunner::Add(wire::Directive directive) {
  MutexLock lock(mu_);
  if (stop_ || waiting_.size() >= kWaitingMax) return;
  waiting_.push_back(std::move(directive));
  wake_.NotifyOne();
}

void DirectiveRunner::Stop() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
}

void DirectiveRunner::Run() {
  pthread_setname_np(pthread_self(), "directives");
  for (;;) {
    wire::Directive next;
    {
      MutexLock lock(mu_);
      while (!stop_ && waiting_.empty()) wake_.Wait(mu_);
      if (stop_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    wire::Up up;
    up.directives_done.push_back({next.directive_id, Do(next)});
    if (!send_(std::move(up)).ok()) return;
  }
}

// If the handler returns the wrong number of statuses, the answer is kUnsupported.  The answer for
// a directive without keys is one status if it was not carried out, and no status if it was; the
// handler may return kOk for the latter.
std::vector<BlockStatus> DirectiveRunner::Do(const wire::Directive& directive) const {
  const size_t keys = directive.digests.size(), answers = std::max<size_t>(keys, 1);
  if (now_ms_() >= directive.valid_unix_ms)
    return std::vector<BlockStatus>(answers, BlockStatus::kCancelled);
  std::vector<BlockStatus> said = handler_(directive);
  if (keys == 0 && said.size() == 1) {
    if (said.front() == BlockStatus::kOk) said.clear();
    return said;
  }
  if (said.size() != keys) said.assign(answers, BlockStatus::kUnsupported);
  return said;
}

}  // namespace larder
