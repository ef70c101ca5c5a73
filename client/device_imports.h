// Device memory of other processes, imported and kept, for a decoder that reads a prefiller's
// blocks again and again.
//
// At most `imports_max` imports are kept; the least recently used one is discarded first.  If the
// process that shared the memory has ended, or has called Client::DropShare, Sweep discards the
// import, and so does a Get of the ticket: the memory may be gone.
// Ownership: Client and device are the caller's and outlive this object.  Memory that Get returned
// stays imported at least as long as a caller holds it, and the device must outlive it.
// Thread-safety: All methods may be called from any thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "cuda/device.h"

namespace larder {

class DeviceImports {
 public:
  DeviceImports(Client& client, Device& device, size_t imports_max = 64);
  ~DeviceImports();
  DeviceImports(const DeviceImports&) = delete;
  DeviceImports& operator=(const DeviceImports&) = delete;

  // Returns the memory behind the ticket.  Each call asks the daemon whether the ticket is still
  // valid: one round trip of the sideband.  If it is not, discards the ticket's import and returns
  // NotFound.  Other errors are those of Client::OpenShared and Device::Import.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const DeviceMemory>> Get(const ShareTicket& ticket);
  // Discards the imports whose tickets the daemon reports as no longer valid.
  void Sweep();
  [[nodiscard]] size_t kept() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace larder
