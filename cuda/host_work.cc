#include "cuda/host_work.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "storage/clock.h"
#include "storage/memory/copy_kernels.h"

namespace larder {
namespace {

// The caller calls StoreFence() before it tells another thread that the copy is complete.
void CopyNow(const DeviceCopy& copy) {
  // Shorter copies use memcpy, which leaves their bytes in the caches.
  constexpr uint64_t kKernelBytes = 4 << 10;
  auto* const to = reinterpret_cast<std::byte*>(copy.to);
  const auto* const from = reinterpret_cast<const std::byte*>(copy.from);
  if (copy.bytes >= kKernelBytes)
    ChooseKernel().Copy({to, copy.bytes}, {from, copy.bytes});
  else
    std::memcpy(to, from, copy.bytes);
}

}  // namespace

void HostWork::Add(std::span<const DeviceCopy> copies) {
  std::vector<DeviceCopy> parts;
  parts.reserve(copies.size());
  for (const DeviceCopy& copy : copies)
    for (uint64_t at = 0; at < copy.bytes; at += kPartBytes)
      parts.push_back({copy.to + at, copy.from + at, std::min(kPartBytes, copy.bytes - at)});
  if (!parts.empty()) Push({.copies = std::move(parts)});
}

void HostWork::Add(std::function<void()> call) { Push({.call = std::move(call)}); }

void HostWork::Push(Item item) {
  MutexLock lock(mu_);
  items_.push_back(std::move(item));
  changed_.NotifyAll();
}

uint64_t HostWork::added() const {
  MutexLock lock(mu_);
  return done_ + items_.size();
}

bool HostWork::Done(uint64_t count) const {
  MutexLock lock(mu_);
  return done_ >= count;
}

bool HostWork::Wait(uint64_t count, std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mu_);
  while (done_ < count) {
    if (SteadyNow() >= deadline) return false;
    if (!CopySome()) (void)changed_.WaitUntil(mu_, deadline);
  }
  return true;
}

void HostWork::Run() {
  MutexLock lock(mu_);
  while (!ending_ || !items_.empty()) {
    if (!items_.empty() && items_.front().call) {
      const std::function<void()> call = std::move(items_.front().call);
      mu_.Unlock();
      call();
      mu_.Lock();
      Finish();
    } else if (!CopySome()) {
      changed_.Wait(mu_);
    }
  }
}

void HostWork::End() {
  MutexLock lock(mu_);
  ending_ = true;
  changed_.NotifyAll();
}

std::span<const DeviceCopy> HostWork::Take(Item& item) {
  const size_t first = item.taken;
  for (uint64_t bytes = 0; item.Left() && bytes < kPartBytes; ++item.taken)
    bytes += item.copies[item.taken].bytes;
  return std::span(item.copies).subspan(first, item.taken - first);
}

bool HostWork::CopySome() {
  if (items_.empty() || !items_.front().Left()) return false;
  Item& item = items_.front();  // stays where it is: it is removed once no thread works on it
  const std::span<const DeviceCopy> part = Take(item);
  ++item.threads;
  mu_.Unlock();
  for (const DeviceCopy& copy : part) CopyNow(copy);
  StoreFence();
  mu_.Lock();
  if (--item.threads == 0 && !item.Left()) Finish();
  return true;
}

// The first item is done.
void HostWork::Finish() {
  items_.pop_front();
  ++done_;
  changed_.NotifyAll();
}

}  // namespace larder
