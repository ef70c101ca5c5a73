#include "client/local/sideband_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {

SidebandMemory::Counted::Counted(std::shared_ptr<Live> live) : live_(std::move(live)) {
  MutexLock lock(live_->mu);
  ++live_->mappings;
}

SidebandMemory::Counted::~Counted() {
  MutexLock lock(live_->mu);
  --live_->mappings;
  live_->fewer.NotifyAll();
}

// Declared in this order so that the mapping ends before it stops being counted.
struct SidebandMemory::Slab {
  Slab(std::unique_ptr<Counted> the_count, MappedSlab the_mapping)
      : counted(std::move(the_count)), mapping(std::move(the_mapping)) {}
  const std::unique_ptr<Counted> counted;
  const MappedSlab mapping;
};

class SidebandMemory::Page final : public RevocationWords {
 public:
  Page(std::shared_ptr<Live> live, MappedSessionPage page)
      : counted_(std::move(live)), page_(std::move(page)) {}
  [[nodiscard]] bool Holds(uint32_t word, uint64_t id) const override {
    return page_.Holds(word, id);
  }

 private:
  const Counted counted_;
  const MappedSessionPage page_;
};

absl::StatusOr<MappedBytes> SidebandMemory::MapSlab(uint32_t slab, bool writable) {
  if (slab > UINT16_MAX) return absl::InternalError(absl::StrCat("no slab has the number ", slab));
  // Counted before it is requested, so that WaitUnmapped waits for a request under way too.
  auto count = std::make_unique<Counted>(live_);
  LARDER_ASSIGN_OR_RETURN(MappedSlab mapped,
                          sideband_->MapSlab(static_cast<SlabId>(slab), writable));
  auto owner = std::make_shared<const Slab>(std::move(count), std::move(mapped));
  const std::span<const std::byte> bytes = owner->mapping.bytes();
  // The type allows writes, but the kernel keeps read-only memory read-only.
  return MappedBytes{std::move(owner), {const_cast<std::byte*>(bytes.data()), bytes.size()}};
}

absl::StatusOr<std::shared_ptr<const RevocationWords>> SidebandMemory::MapSessionPage(
    SessionId session) {
  LARDER_ASSIGN_OR_RETURN(MappedSessionPage page, sideband_->MapSessionPage(session));
  return std::make_shared<const Page>(live_, std::move(page));
}

absl::StatusOr<StagingMemory> SidebandMemory::MakeStaging(ByteCount bytes) {
  return sideband_->MakeStaging(bytes);
}

absl::Status SidebandMemory::DropStaging(uint32_t id) { return sideband_->DropStaging(id); }

bool SidebandMemory::WaitUnmapped(TimePoint deadline) const {
  MutexLock lock(live_->mu);
  bool in_time = true;
  while (live_->mappings > 0) {
    if (!in_time) return false;
    in_time = live_->fewer.WaitUntil(live_->mu, deadline);
  }
  return true;
}

}  // namespace larder
