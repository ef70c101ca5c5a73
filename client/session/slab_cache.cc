#include "client/session/slab_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {
namespace {
constexpr uint32_t kSlabsMax = 1 << 16;
}  // namespace

absl::StatusOr<MappedBytes> SlabCache::Slab(uint32_t slab, bool writable) {
  MutexLock lock(mu_);
  std::vector<MappedBytes>& slabs = slabs_[writable ? 1 : 0];
  absl::flat_hash_set<uint32_t>& mapping = mapping_[writable ? 1 : 0];
  for (;;) {
    if (memory_ == nullptr)
      return absl::UnavailableError(
          "the session has ended and its memory is unmapped: Attach again");
    if (slab < slabs.size() && slabs[slab].owner != nullptr) return slabs[slab];
    if (!mapping.insert(slab).second) {
      mapped_.Wait(mu_);
      continue;
    }
    const std::shared_ptr<SharedMemory> memory = memory_;
    mu_.Unlock();
    absl::StatusOr<MappedBytes> mapped = memory->MapSlab(slab, writable);
    mu_.Lock();
    mapping.erase(slab);
    mapped_.NotifyAll();
    LARDER_RETURN_IF_ERROR(mapped.status());
    if (memory_ == nullptr) continue;  // dropped meanwhile: returns Unavailable
    if (slab >= slabs.size()) slabs.resize(slab + 1);
    slabs[slab] = *mapped;
    return mapped;
  }
}

absl::StatusOr<MappedBytes> SlabCache::Map(const wire::ExtentGrant& extent, bool writable) {
  if (extent.slab >= kSlabsMax || !wire::IsWellFormed(extent)) {
    return absl::InternalError(absl::StrCat("the daemon named an impossible extent: slab ",
                                            extent.slab, ", offset ", extent.offset, ", bytes ",
                                            extent.bytes));
  }
  absl::StatusOr<MappedBytes> slab = Slab(extent.slab, writable);
  LARDER_RETURN_IF_ERROR(slab.status());
  const uint64_t size = slab->bytes.size();
  if (extent.offset > size || extent.bytes > size - extent.offset) {
    return absl::InternalError(absl::StrCat("the daemon named an extent outside its slab: offset ",
                                            extent.offset, ", bytes ", extent.bytes, ", slab of ",
                                            size));
  }
  slab->bytes = slab->bytes.subspan(extent.offset, extent.bytes);
  return slab;
}

void SlabCache::Drop() {
  std::shared_ptr<SharedMemory> memory;  // released after the lock
  std::vector<MappedBytes> slabs[2];
  MutexLock lock(mu_);
  memory.swap(memory_);
  slabs[0].swap(slabs_[0]);
  slabs[1].swap(slabs_[1]);
  mapped_.NotifyAll();
}

}  // namespace larder
