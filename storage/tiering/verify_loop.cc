#include "storage/tiering/verify_loop.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "storage/check.h"
#include "storage/clock.h"

namespace larder {

namespace {

VerifyLoop::Options Checked(const VerifyLoop::Options& options) {
  LARDER_CHECK(options.bytes_per_s.value() > 0);
  return options;
}

}  // namespace

// The rate is checked before the thread starts, because the thread divides by the rate.
VerifyLoop::VerifyLoop(const Options& options, const BlockIndex& index, Examine examine)
    : options_(Checked(options)),
      index_(index),
      examine_(std::move(examine)),
      thread_([this] { Run(); }) {}

VerifyLoop::~VerifyLoop() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

VerifyLoop::Stats VerifyLoop::stats() const {
  MutexLock lock(mu_);
  return stats_;
}

bool VerifyLoop::stopping() const {
  MutexLock lock(mu_);
  return stop_;
}

bool VerifyLoop::Sleep(Duration how_long) {
  const TimePoint until = SteadyNow() + how_long;
  MutexLock lock(mu_);
  while (!stop_ && wake_.WaitUntil(mu_, until)) {
  }
  return !stop_;
}

void VerifyLoop::Run() {
  pthread_setname_np(pthread_self(), options_.thread);
  do {
    Walk();
  } while (Sleep(options_.pause));
}

void VerifyLoop::Walk() {
  index_.ForEach([this](const BlockIndex::View& view) {
    if (!stopping()) LookAt(view);
  });
  MutexLock lock(mu_);
  if (!stop_) ++stats_.walks;
}

void VerifyLoop::LookAt(const BlockIndex::View& view) {
  const auto [outcome, bytes] = examine_(view);
  if (outcome == Outcome::kPassedOver) return;
  {
    MutexLock lock(mu_);
    stats_.bytes += bytes;
    stats_.blocks += outcome == Outcome::kOk ? 1 : 0;
    stats_.damaged += outcome == Outcome::kDamaged ? 1 : 0;
    stats_.failed += outcome == Outcome::kFailed ? 1 : 0;
  }
  const ByteCount charged = bytes == ByteCount(0) ? bytes : std::max(bytes, options_.charged_min);
  const std::chrono::duration<double> pace(static_cast<double>(charged.value()) /
                                           static_cast<double>(options_.bytes_per_s.value()));
  owed_ += std::chrono::duration_cast<Duration>(pace);
  const bool failed = outcome == Outcome::kFailed;
  if (!failed && owed_ < kOwedMax) return;
  const Duration owed = std::exchange(owed_, Duration::zero());
  (void)Sleep(failed ? options_.pause : owed);
}

}  // namespace larder
