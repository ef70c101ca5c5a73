#include "server/processes/device_shares.h"

#include <fcntl.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {

size_t DeviceShares::TicketHash::operator()(const ShareTicket& ticket) const {
  size_t hash = 0;
  std::memcpy(&hash, ticket.data(), sizeof hash);
  return hash;
}

absl::StatusOr<ShareTicket> DeviceShares::Add(ProcessId owner, uid_t uid, Share share) {
  ShareTicket ticket;
  LARDER_CHECK(getrandom(ticket.data(), ticket.size(), 0) == ssize_t{ticket.size()});
  MutexLock lock(mu_);
  const auto mine = per_process_.find(owner);
  if (mine != per_process_.end() && mine->second >= options_.process_shares_max)
    return absl::ResourceExhaustedError(absl::StrCat("a process may share at most ",
                                                     options_.process_shares_max,
                                                     " pieces of device memory; drop one"));
  if (entries_.size() >= options_.shares_max)
    return absl::ResourceExhaustedError(absl::StrCat("all processes together may share at most ",
                                                     options_.shares_max,
                                                     " pieces of device memory; try again later"));
  entries_.emplace(ticket, Entry{owner, uid, std::move(share)});
  ++per_process_[owner];
  return ticket;
}

absl::StatusOr<DeviceShares::Share> DeviceShares::Open(uid_t uid, const ShareTicket& ticket) const {
  MutexLock lock(mu_);
  const auto found = entries_.find(ticket);
  if (found == entries_.end() || found->second.uid != uid)
    return absl::NotFoundError(
        "no device memory is shared under this ticket; its owner may have dropped it or ended");
  const Share& share = found->second.share;
  if (const auto* handle = std::get_if<DeviceHandle>(&share.memory))
    return Share{share.bytes, *handle};
  FileDescriptor copy(fcntl(std::get<FileDescriptor>(share.memory).get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return absl::ErrnoToStatus(errno, "cannot duplicate a descriptor of device memory");
  return Share{share.bytes, std::move(copy)};
}

bool DeviceShares::Drop(ProcessId owner, const ShareTicket& ticket) {
  Entry dropped;  // declared before the lock, so it is closed after the lock is released
  MutexLock lock(mu_);
  const auto found = entries_.find(ticket);
  if (found == entries_.end() || found->second.owner != owner) return false;
  dropped = std::move(found->second);
  entries_.erase(found);
  if (--per_process_[owner] == 0) per_process_.erase(owner);
  return true;
}

void DeviceShares::DropProcess(ProcessId owner) {
  std::vector<Entry> dropped;  // declared before the lock, so closed after the lock is released
  MutexLock lock(mu_);
  if (per_process_.erase(owner) == 0) return;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto entry = it++;
    if (entry->second.owner != owner) continue;
    dropped.push_back(std::move(entry->second));
    entries_.erase(entry);
  }
}

size_t DeviceShares::count() const {
  MutexLock lock(mu_);
  return entries_.size();
}

}  // namespace larder
