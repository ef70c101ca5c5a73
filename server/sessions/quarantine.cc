#include "server/sessions/quarantine.h"

#include <utility>

#include "storage/check.h"

namespace larder {

bool Quarantine::Put(ProcessId process, SessionId session, std::vector<BlockLease> leases,
                     std::vector<ExtentReservation> reservations,
                     std::shared_ptr<const void> beside) {
  Held held{.leases = std::move(leases),
            .reservations = std::move(reservations),
            .bytes = {},
            .beside = std::move(beside)};
  for (const BlockLease& lease : held.leases) held.bytes += lease.held_bytes();
  for (const ExtentReservation& reservation : held.reservations) {
    held.bytes += reservation.held_bytes();
  }
  // Leases that hold no bytes are kept too.
  if (held.leases.empty() && held.bytes == ByteCount(0)) return false;
  MutexLock lock(mu_);
  bytes_ += held.bytes;
  LARDER_CHECK(held_[process].emplace(session, std::move(held)).second);
  return true;
}

ByteCount Quarantine::Release(ProcessId process) {
  Sessions freed;  // destroyed after the lock is released, which returns the extents to the store
  ByteCount sum;
  MutexLock lock(mu_);
  const auto it = held_.find(process);
  if (it == held_.end()) return sum;
  freed = std::move(it->second);
  held_.erase(it);
  for (const auto& [session, held] : freed) sum += held.bytes;
  bytes_ -= sum;
  return sum;
}

std::optional<ByteCount> Quarantine::Release(ProcessId process, SessionId session) {
  Held freed;
  MutexLock lock(mu_);
  const auto of_process = held_.find(process);
  if (of_process == held_.end()) return std::nullopt;
  const auto it = of_process->second.find(session);
  if (it == of_process->second.end()) return std::nullopt;
  freed = std::move(it->second);
  of_process->second.erase(it);
  if (of_process->second.empty()) held_.erase(of_process);
  bytes_ -= freed.bytes;
  return freed.bytes;
}

ByteCount Quarantine::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

size_t Quarantine::processes() const {
  MutexLock lock(mu_);
  return held_.size();
}

}  // namespace larder
