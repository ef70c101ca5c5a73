// A session's SharedMemory over the process's sideband.  It counts the mappings of slabs and of the
// session page (the page with revocation words), so that the next attach can wait until an ended
// session has none.  Staging segments are not counted.
//
// Ownership: Shares the sideband.  A mapping lives as long as the pointer that was returned for it,
// even after this object.
// Thread-safety: All methods may be called from any thread.
#pragma once

#include <memory>

#include "client/local/sideband_client.h"
#include "client/session/session_channel.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class SidebandMemory final : public SharedMemory {
 public:
  explicit SidebandMemory(std::shared_ptr<SidebandClient> sideband)
      : sideband_(std::move(sideband)), live_(std::make_shared<Live>()) {}

  [[nodiscard]] absl::StatusOr<MappedBytes> MapSlab(uint32_t slab, bool writable) override;
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const RevocationWords>> MapSessionPage(
      SessionId session) override;
  [[nodiscard]] absl::StatusOr<StagingMemory> MakeStaging(ByteCount bytes) override;
  [[nodiscard]] absl::Status DropStaging(uint32_t id) override;

  // Waits until no slab and no session page that this object mapped is mapped any more.  Returns
  // false if one still is at the deadline.
  [[nodiscard]] bool WaitUnmapped(TimePoint deadline) const;

 private:
  struct Live {
    Mutex mu;
    CondVar fewer;
    size_t mappings LARDER_GUARDED_BY(mu) = 0;
  };
  // Counts one mapping while it lives.
  class Counted {
   public:
    explicit Counted(std::shared_ptr<Live> live);
    ~Counted();
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    const std::shared_ptr<Live> live_;
  };
  struct Slab;
  class Page;

  const std::shared_ptr<SidebandClient> sideband_;
  const std::shared_ptr<Live> live_;
};

}  // namespace larder
