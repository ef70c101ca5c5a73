#include "server/sessions/damage_checks.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "storage/clock.h"

namespace larder {

DamageChecks::DamageChecks(BlockStore& store, Counters& counters, const Limits& limits)
    : store_(store), counters_(counters), limits_(limits), thread_([this] { Run(); }) {}

DamageChecks::~DamageChecks() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

DamageChecks::Waiting* DamageChecks::PlaceOf(const ShareHolder& reporter) {
  const auto found = waiting_.find(reporter.process);
  if (found != waiting_.end()) return &found->second;
  const auto of_uid = processes_.find(reporter.uid);
  const bool uid_full = of_uid != processes_.end() &&
                        of_uid->second >= std::max<size_t>(limits_.processes_max / 2, 1);
  if (waiting_.size() >= limits_.processes_max || uid_full) return nullptr;
  ++processes_[reporter.uid];
  turns_.push_back(reporter.process);
  Waiting& waiting = waiting_[reporter.process];
  waiting.uid = reporter.uid;
  return &waiting;
}

void DamageChecks::Report(const ShareHolder& reporter, VariantIndex variant,
                          std::span<const Digest> digests) {
  if (digests.empty()) return;
  uint64_t dropped = 0;
  {
    MutexLock lock(mu_);
    Waiting* const waiting = PlaceOf(reporter);
    for (const Digest& digest : digests) {
      const Name name{variant, digest};
      if (waiting == nullptr || waiting->known.size() >= limits_.process_max) {
        ++dropped;
      } else if (waiting->known.insert(name).second) {
        waiting->blocks.push_back(name);
      }
    }
  }
  if (dropped > 0) counters_.damage_reports_dropped += dropped;
  wake_.NotifyOne();
}

size_t DamageChecks::waiting() const {
  size_t blocks = 0;
  MutexLock lock(mu_);
  for (const auto& [process, waiting] : waiting_) blocks += waiting.blocks.size();
  return blocks;
}

DamageChecks::Name DamageChecks::TakeNext() {
  const ProcessId process = turns_.front();
  turns_.pop_front();
  const auto of_process = waiting_.find(process);
  Waiting& waiting = of_process->second;
  const Name name = waiting.blocks.front();
  waiting.blocks.pop_front();
  waiting.known.erase(name);
  if (waiting.blocks.empty()) {
    const auto of_uid = processes_.find(waiting.uid);
    if (--of_uid->second == 0) processes_.erase(of_uid);
    waiting_.erase(of_process);
  } else {
    turns_.push_back(process);
  }
  return name;
}

ByteCount DamageChecks::Check(const Name& name) {
  const BlockIndex::Held held = store_.HoldUntouched(name.first, name.second);
  if (held.ref.value == 0) return {};
  ByteCount read;
  if (held.metadata != nullptr) {  // otherwise it is only on disk, where every read is checked
    read = held.metadata->payload_bytes();
    const SegmentRange all{0, held.metadata->segment_count(), 0, read.value()};
    if (!store_.Check(held, all)) store_.DropDamaged(held.ref);
  }
  store_.Unhold({&held.ref, 1});
  return read;
}

void DamageChecks::Run() {
  pthread_setname_np(pthread_self(), "damage-checks");
  TimePoint next;  // the earliest time of the next check
  for (;;) {
    Name name;
    {
      MutexLock lock(mu_);
      while (!stop_ && turns_.empty()) wake_.Wait(mu_);
      while (!stop_ && SteadyNow() < next) wake_.WaitUntil(mu_, next);
      if (stop_) return;
      name = TakeNext();
    }
    const ByteCount read = std::max(Check(name), kLeast);
    const std::chrono::duration<double> takes(static_cast<double>(read.value()) /
                                              static_cast<double>(limits_.bytes_per_s.value()));
    next = std::max(next, SteadyNow()) + std::chrono::duration_cast<Duration>(takes);
  }
}

}  // namespace larder
