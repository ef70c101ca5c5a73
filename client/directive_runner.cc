#include "client/directive_runner.h"

#include <pthread.h>

#include <utility>

namespace larder {

DirectiveRunner::DirectiveRunner(Handler handler, Send send)
    : handler_(std::move(handler)), send_(std::move(send)), thread_([this] { Run(); }) {}

DirectiveRunner::~DirectiveRunner() { Stop(); }

void DirectiveRunner::Add(wire::Directive directive) {
  MutexLock lock(mu_);
  if (stop_ || waiting_.size() >= 2 * kWaitingMax) return;  // a daemon that asks for ever
  const bool refused = waiting_.size() >= kWaitingMax;
  waiting_.push_back({std::move(directive), refused});
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
    Waiting next;
    {
      MutexLock lock(mu_);
      while (!stop_ && waiting_.empty()) wake_.Wait(mu_);
      if (stop_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const size_t keys = next.directive.digests.size();
    wire::DirectiveDone done{.directive_id = next.directive.directive_id, .status = {}};
    if (!next.refused) done.status = handler_(next.directive);
    // A handler that answers of other keys has not understood.
    if (done.status.size() != keys) done.status.assign(keys, BlockStatus::kUnsupported);
    wire::Up up;
    up.directives_done.push_back(std::move(done));
    if (!send_(std::move(up)).ok()) return;
  }
}

}  // namespace larder
