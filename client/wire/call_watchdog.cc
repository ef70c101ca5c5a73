#include "client/wire/call_watchdog.h"

#include <algorithm>
#include <utility>

namespace larder {

CallWatchdog::CallWatchdog(std::function<void()> cancel)
    : cancel_(std::move(cancel)), thread_([this] { Run(); }) {}

CallWatchdog::~CallWatchdog() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void CallWatchdog::Arm(TimePoint due) {
  MutexLock lock(mu_);
  due_.push_back(due);
  if (due < looks_at_) {
    looks_at_ = due;
    wake_.NotifyAll();
  }
}

void CallWatchdog::Disarm(TimePoint due) {
  MutexLock lock(mu_);
  due_.erase(std::find(due_.begin(), due_.end(), due));
}

bool CallWatchdog::cancelled() {
  MutexLock lock(mu_);
  return cancelled_;
}

void CallWatchdog::Run() {
  mu_.Lock();
  while (!stop_ && !cancelled_) {
    if (looks_at_ == TimePoint::max()) {
      wake_.Wait(mu_);
      continue;
    }
    if (wake_.WaitUntil(mu_, looks_at_)) continue;  // stopped, or something is due sooner
    const auto next = std::min_element(due_.begin(), due_.end());
    looks_at_ = next == due_.end() ? TimePoint::max() : *next;
    cancelled_ = next != due_.end() && *next <= std::chrono::steady_clock::now();
  }
  const bool cancel = cancelled_;
  mu_.Unlock();
  if (cancel) cancel_();
}

}  // namespace larder
