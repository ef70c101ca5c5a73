#include "client/device_imports.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "storage/mutex.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

struct Kept {
  ShareTicket ticket;
  std::shared_ptr<const DeviceMemory> memory;
};

}  // namespace

struct DeviceImports::Impl {
  Impl(Client& the_client, Device& the_device, size_t max)
      : client(the_client), device(the_device), imports_max(max) {}

  // Returns the ticket's memory and moves its entry to the front of `kept`.  Returns null if `kept`
  // has no such entry.
  [[nodiscard]] std::shared_ptr<const DeviceMemory> Find(const ShareTicket& ticket)
      LARDER_REQUIRES(mu) {
    const auto found = std::ranges::find(kept, ticket, &Kept::ticket);
    if (found == kept.end()) return nullptr;
    kept.splice(kept.begin(), kept, found);
    return found->memory;
  }
  void LetGo(const ShareTicket& ticket) LARDER_EXCLUDES(mu) {
    std::list<Kept> gone;  // freed without the lock
    MutexLock lock(mu);
    if (Find(ticket) != nullptr) gone.splice(gone.begin(), kept, kept.begin());
  }

  Client& client;
  Device& device;
  const size_t imports_max;
  Mutex mu;
  std::list<Kept> kept LARDER_GUARDED_BY(mu);  // latest use first
};

DeviceImports::DeviceImports(Client& client, Device& device, size_t imports_max)
    : impl_(std::make_unique<Impl>(client, device, imports_max)) {}
DeviceImports::~DeviceImports() = default;

absl::StatusOr<std::shared_ptr<const DeviceMemory>> DeviceImports::Get(const ShareTicket& ticket) {
  const absl::StatusOr<DeviceExport> exported = impl_->client.OpenShared(ticket);
  if (absl::IsNotFound(exported.status())) impl_->LetGo(ticket);
  LARDER_RETURN_IF_ERROR(exported.status());
  {
    MutexLock lock(impl_->mu);
    if (auto memory = impl_->Find(ticket); memory != nullptr) return memory;
  }
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> imported, impl_->device.Import(*exported));
  std::shared_ptr<const DeviceMemory> memory = std::move(imported);
  std::list<Kept> gone;  // freed without the lock
  MutexLock lock(impl_->mu);
  // Another thread may have imported the memory meanwhile: then that thread's import is kept.
  if (auto other = impl_->Find(ticket); other != nullptr) return other;
  impl_->kept.push_front({ticket, memory});
  if (impl_->kept.size() > impl_->imports_max)
    gone.splice(gone.begin(), impl_->kept, std::prev(impl_->kept.end()));
  return memory;
}

void DeviceImports::Sweep() {
  std::vector<ShareTicket> tickets;
  {
    MutexLock lock(impl_->mu);
    for (const Kept& kept : impl_->kept) tickets.push_back(kept.ticket);
  }
  for (const ShareTicket& ticket : tickets)
    if (absl::IsNotFound(impl_->client.OpenShared(ticket).status())) impl_->LetGo(ticket);
}

size_t DeviceImports::kept() const {
  MutexLock lock(impl_->mu);
  return impl_->kept.size();
}

}  // namespace larder
