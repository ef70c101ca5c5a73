// Device memory of other processes, imported once and kept: a decoder that reads a prefiller's
// blocks again and again.
//
// What is kept is bounded, least recently used first out, and goes when its owner dropped it or
// ended: by descriptor the bytes would stay right, by handle they may be gone.
// Ownership: client and device are the caller's and outlive it.  Memory that was handed out lives
// as long as somebody has it.
// Thread-safety: all methods from any thread.
// Limits: `imports_max` kept.
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

  // Asks the daemon whether the ticket still stands, each time: one round trip of the sideband.
  // NotFound: it does not, and what was kept of it is let go.  Else as Client::OpenShared and
  // Device::Import; which path it took is in the device's stats.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const DeviceMemory>> Get(const ShareTicket& ticket);
  // Lets go of what no longer stands, without anybody asking for it.
  void Sweep();
  [[nodiscard]] size_t kept() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace larder
