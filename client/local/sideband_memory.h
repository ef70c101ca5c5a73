// SharedMemory of a session over the process's sideband.  Counts what is mapped, so that the next
// attach can wait until nothing of a lost session is.
//
// Ownership: shares the sideband.  A mapping lives as long as its owner, also after this.
// Thread-safety: all methods from any thread.
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

  // False: something is still mapped then.
  [[nodiscard]] bool WaitUnmapped(TimePoint deadline) const;

 private:
  struct Live {
    Mutex mu;
    CondVar fewer;
    size_t mappings LARDER_GUARDED_BY(mu) = 0;
  };
  // One mapping in the count.
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
