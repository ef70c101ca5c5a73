#include "client/local/pinned_memory.h"

namespace larder {
namespace {

// Unregistered first, then unmapped.
struct PinnedMapping {
  std::shared_ptr<const void> mapping;
  std::unique_ptr<PinnedMemory> pinned;
};

}  // namespace

absl::StatusOr<MappedBytes> PinnedSharedMemory::MapSlab(uint32_t slab, bool writable) {
  absl::StatusOr<MappedBytes> mapped = memory_->MapSlab(slab, writable);
  if (!mapped.ok()) return mapped;
  PinOptions options;
  options.access = writable ? PinAccess::kReadWrite : PinAccess::kRead;
  absl::StatusOr<std::unique_ptr<PinnedMemory>> pinned = device_->Pin(mapped->bytes, options);
  if (!pinned.ok()) return pinned.status();
  mapped->owner = std::make_shared<const PinnedMapping>(
      PinnedMapping{std::move(mapped->owner), *std::move(pinned)});
  return mapped;
}

}  // namespace larder
