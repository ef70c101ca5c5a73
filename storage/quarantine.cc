#include "storage/quarantine.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace larder {

bool Quarantine::Put(ProcessId process, std::vector<BlockLease> leases,
                     std::vector<ExtentReservation> reservations) {
  ByteCount bytes;
  for (const BlockLease& lease : leases) bytes += lease.held_bytes();
  for (const ExtentReservation& reservation : reservations) bytes += reservation.held_bytes();
  if (leases.empty() && bytes == ByteCount(0)) return false;  // entries without bytes are held all the same
  MutexLock lock(mu_);
  Held& held = held_[process];
  held.sum.bytes += bytes;
  ++held.sum.sessions;
  bytes_ += bytes;
  std::move(leases.begin(), leases.end(), std::back_inserter(held.leases));
  std::move(reservations.begin(), reservations.end(), std::back_inserter(held.reservations));
  return true;
}

Quarantine::Released Quarantine::Release(ProcessId process) {
  Held freed;  // its handles go back to the store outside our lock
  MutexLock lock(mu_);
  const auto it = held_.find(process);
  if (it == held_.end()) return {};
  freed = std::move(it->second);
  held_.erase(it);
  bytes_ -= freed.sum.bytes;
  return freed.sum;
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
