#include "client/local/pinned_memory.h"

#include "storage/status_macros.h"

namespace larder {
namespace {

// Declared in this order so that the memory is unregistered before it is unmapped.
struct PinnedMapping {
  std::shared_ptr<const void> mapping;
  std::unique_ptr<PinnedMemory> pinned;
};

}  // namespace

absl::StatusOr<MappedBytes> PinnedSharedMemory::MapSlab(uint32_t slab, bool writable) {
  absl::StatusOr<MappedBytes> mapped = memory_->MapSlab(slab, writable);
  LARDER_RETURN_IF_ERROR(mapped.status());
  PinOptions options;
  options.access = writable ? PinAccess::kReadWrite : PinAccess::kRead;
  LARDER_ASSIGN_OR_RETURN(std::unique_ptr<PinnedMemory> pinned,
                          device_->Pin(mapped->bytes, options));
  mapped->owner = std::make_shared<const PinnedMapping>(
      PinnedMapping{std::move(mapped->owner), std::move(pinned)});
  return mapped;
}

}  // namespace larder
