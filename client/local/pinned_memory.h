// Registers with a device the slabs that a session maps, for direct copies between pool and device.
// The session page and staging segments are not registered.
//
// A slab may be registered in the background (Device::Pin).
// Ownership: Shares the SharedMemory that it wraps.  The device must outlive every mapping.
// Thread-safety: All methods may be called from any thread.
#pragma once

#include <memory>
#include <utility>

#include "client/session/session_channel.h"
#include "cuda/device.h"

namespace larder {

class PinnedSharedMemory final : public SharedMemory {
 public:
  PinnedSharedMemory(std::shared_ptr<SharedMemory> memory, Device* device)
      : memory_(std::move(memory)), device_(device) {}

  [[nodiscard]] absl::StatusOr<MappedBytes> MapSlab(uint32_t slab, bool writable) override;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const RevocationWords>> MapSessionPage(
      SessionId session) override {
    return memory_->MapSessionPage(session);
  }
  [[nodiscard]] absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes) override {
    return memory_->MakeStaging(bytes);
  }
  [[nodiscard]] absl::Status DropStaging(uint32_t id) override { return memory_->DropStaging(id); }

 private:
  const std::shared_ptr<SharedMemory> memory_;
  Device* const device_;
};

}  // namespace larder
